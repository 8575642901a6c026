import pytest
import torch

from gradwire.compressors.ternary.ops import twobit_add_decoded, twobit_encode, twobit_encode_feedback
from gradwire.kernels.codes import code_bytes
from tests.cases import together
from tests.ops.harness import TARGETS, Case, check_against_reference, dispatched, gradient, random_bytes, sweep

THRESHOLDS = (0.5, 1e-3, 1e-45, 3e38)
GOLDEN = [0.5, -0.5, 0.49, 1.3, 0, -0.2, -0.75, -3, 0.6, float("nan"), float("inf"), -0.49999, 0.5, 0.5, 0.5, 0.5, -1]
GOLDEN_CODES = "e30accff80000000"
GOLDEN_RESIDUAL = [0, 0, 0.49, 0.8, 0, -0.2, -0.25, -2.5, 0.1, float("nan"), float("inf"), -0.49999, 0, 0, 0, 0, -0.5]


@sweep
def test_encode(n, threads, offset):
    for threshold in THRESHOLDS:
        codes = ((code_bytes(n, 2),), torch.uint8)
        x = gradient(n, 1, finite=False)
        case = Case(twobit_encode, {"x": x}, {"codes": codes}, {"threshold": threshold})
        check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(n, threads, offset, finite, watched):
    codes = ((code_bytes(n, 2),), torch.uint8)
    outputs = {"grad": gradient(n, 2, finite=finite), "residual": gradient(n, 3), "codes": codes}
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    case = Case(twobit_encode_feedback, {}, outputs, {"threshold": 0.5})
    check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("ranks", [0, 1, 3])
def test_add_decoded(n, threads, offset, ranks):
    codes = random_bytes((ranks, code_bytes(n, 2)), 4)
    arguments = {"threshold": 0.3, "scale": -1 / 3}
    for steps in ({}, {"steps": torch.tensor([[0.3], [0.3], [2.0]])[:ranks]}):
        inputs, out = {"codes": codes, **steps}, {"out": gradient(n, 5, finite=False)}
        if ranks or not steps:
            case = Case(twobit_add_decoded, inputs, out, arguments, pitch=5)
            check_against_reference(case, threads, offset)


def test_a_payload_brings_its_own_step():
    codes, steps = torch.tensor([[0b11_10_00_01, 0, 0, 0]] * 2, dtype=torch.uint8), torch.tensor([[0.5], [3.0]])
    out = torch.zeros(4)
    twobit_add_decoded(codes, out, 2.0, 0.5, steps)
    assert out.tolist() == [3.5, -3.5, 0.0, 0.0]


@together
@pytest.mark.parametrize("target", TARGETS)
def test_golden_bytes_of_mxnet(target):
    residual, codes = torch.zeros(17), torch.full((8,), 0xA5, dtype=torch.uint8)
    with dispatched(target):
        twobit_encode_feedback(torch.tensor(GOLDEN), residual, codes, 0.5)
    assert bytes(codes.tolist()).hex() == GOLDEN_CODES
    torch.testing.assert_close(residual, torch.tensor(GOLDEN_RESIDUAL), rtol=0, atol=1e-6, equal_nan=True)


@together
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("pushes", "steps"),
    [
        ((0.4, 0.1, 0.2, 0.3), (0.0, 0.5, 0.0, 0.5)),
        ((-0.4, -0.1, -0.2, -0.3), (0.0, -0.5, 0.0, -0.5)),
        ((0.4, 0.2, 0.2, 0.2), (0.0, 0.5, 0.0, 0.5)),
    ],
)
def test_sequences_of_mxnet(target, pushes, steps):
    residual, codes = torch.zeros(1), torch.empty(4, dtype=torch.uint8)
    for push, step in zip(pushes, steps, strict=True):
        out = torch.zeros(1)
        with dispatched(target):
            twobit_encode_feedback(torch.tensor([push]), residual, codes, 0.5)
            twobit_add_decoded(codes[None], out, 0.5, 1.0)
        assert out.item() == step


def test_decoded_and_residual_are_the_input():
    n = 1000
    grad, residual, codes = (
        gradient(n, 6).clamp(-2, 2),
        torch.zeros(n),
        torch.empty(code_bytes(n, 2), dtype=torch.uint8),
    )
    twobit_encode_feedback(grad, residual, codes, 0.5)
    twobit_add_decoded(codes[None], residual, 0.5, 1.0)
    torch.testing.assert_close(residual, grad, rtol=0, atol=1e-6)


def test_the_step_can_be_undone():
    grad, residual, codes = gradient(100, 7, finite=False), gradient(100, 8), torch.empty(28, dtype=torch.uint8)
    old, status = residual.clone(), torch.zeros(1, dtype=torch.int32)
    twobit_encode_feedback(grad, residual, codes, 0.5, status)
    assert status.item() == 1
    assert torch.equal(grad, old)
