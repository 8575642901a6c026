import pytest
import torch

from gradwire.compressors.signs.ops import onebit_add_decoded, onebit_encode, onebit_encode_feedback
from gradwire.kernels.codes import code_bytes
from tests.cases import together
from tests.ops.harness import TARGETS, Case, check_against_reference, dispatched, gradient, random_bytes, sweep

THRESHOLDS = (0.5, 0.0, -0.5)
GOLDEN = [0.6, 0.5, -0.1, 0.51, 2, -2, 0, float("nan"), 0.7]
GOLDEN_CODES = "98800000"
GOLDEN_RESIDUAL = [-0.4, 1.5, 0.9, -0.49, 1, -1, 1, float("nan"), -0.3]


@sweep
def test_encode(n, threads, offset):
    for threshold in THRESHOLDS:
        codes = ((code_bytes(n, 1),), torch.uint8)
        x = gradient(n, 1, finite=False)
        for inputs in ({"x": x}, {"x": x, "step": torch.tensor([0.7])}):
            case = Case(onebit_encode, inputs, {"codes": codes}, {"threshold": threshold})
            check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(n, threads, offset, finite, watched):
    codes = ((code_bytes(n, 1),), torch.uint8)
    outputs = {"grad": gradient(n, 2, finite=finite), "residual": gradient(n, 3), "codes": codes}
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    for inputs in ({}, {"step": torch.tensor([0.7])}):
        case = Case(onebit_encode_feedback, inputs, outputs, {"threshold": -0.25})
        check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("ranks", [0, 1, 3])
def test_add_decoded(n, threads, offset, ranks):
    codes = random_bytes((ranks, code_bytes(n, 1)), 4)
    for inputs in ({"codes": codes}, {"codes": codes, "steps": torch.tensor([[0.3], [7.0], [1e-3]])[:ranks]}):
        case = Case(onebit_add_decoded, inputs, {"out": gradient(n, 5, finite=False)}, {"scale": 1 / 3}, pitch=3)
        check_against_reference(case, threads, offset)


@together
@pytest.mark.parametrize("target", TARGETS)
def test_golden_bytes_of_mxnet(target):
    residual, codes = torch.zeros(9), torch.full((4,), 0xA5, dtype=torch.uint8)
    with dispatched(target):
        onebit_encode_feedback(torch.tensor(GOLDEN), residual, codes, 0.5)
    assert bytes(codes.tolist()).hex() == GOLDEN_CODES
    torch.testing.assert_close(residual, torch.tensor(GOLDEN_RESIDUAL), rtol=0, atol=1e-6, equal_nan=True)


@together
@pytest.mark.parametrize("target", TARGETS)
def test_the_padding_is_not_decoded(target):
    out = torch.zeros(40)
    with dispatched(target):
        onebit_add_decoded(torch.zeros(1, 4, dtype=torch.uint8), out[:9], 1.0)
    assert out.tolist() == [-1.0] * 9 + [0.0] * 31


def test_decoded_and_residual_are_the_input():
    n = 1000
    grad, residual, codes = (
        gradient(n, 6).clamp(-2, 2),
        torch.zeros(n),
        torch.empty(code_bytes(n, 1), dtype=torch.uint8),
    )
    onebit_encode_feedback(grad, residual, codes, 0.5)
    onebit_add_decoded(codes[None], residual, 1.0)
    torch.testing.assert_close(residual, grad, rtol=0, atol=1e-6)


def test_a_rest_that_overflows_is_reported():
    residual, codes, status = torch.zeros(3), torch.empty(4, dtype=torch.uint8), torch.zeros(1, dtype=torch.int32)
    onebit_encode_feedback(torch.full((3,), 3e38), residual, codes, 2.0, status, torch.tensor([3e38]))
    assert residual.isinf().all()
    assert status.item() == 1
