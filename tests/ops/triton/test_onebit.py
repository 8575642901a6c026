import pytest
import torch

from gradwire.compressors.signs.ops import onebit_add_decoded, onebit_encode, onebit_encode_feedback
from gradwire.kernels.codes import code_bytes
from tests.ops.harness import Case, gradient, random_bytes
from tests.ops.triton.checks import check, sizes


@sizes
@pytest.mark.parametrize("threshold", [0.5, 0.0, -0.5])
def test_encode(on, n, threshold):
    codes = {"codes": ((code_bytes(n, 1),), torch.uint8)}
    x = {"x": gradient(n, 1, finite=False)}
    for inputs in (x, x | {"step": torch.tensor([0.7])}):
        check(Case(onebit_encode, inputs, codes, {"threshold": threshold}), on, n % 3)


@sizes
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(on, n, finite, watched):
    outputs = {
        "grad": gradient(n, 2, finite=finite),
        "residual": gradient(n, 3),
        "codes": ((code_bytes(n, 1),), torch.uint8),
    }
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    for inputs in ({}, {"step": torch.tensor([0.7])}):
        check(Case(onebit_encode_feedback, inputs, outputs, {"threshold": -0.25}), on, n % 3)


@sizes
@pytest.mark.parametrize("scale", [1 / 3, 0.0])
def test_add_decoded(on, n, scale):
    for ranks in (0, 1, 3):
        codes, out = random_bytes((ranks, code_bytes(n, 1)), 4), gradient(n, 5, finite=False)
        steps = torch.tensor([[0.3], [7.0], [1e-3]])[:ranks]
        for inputs in ({"codes": codes}, {"codes": codes, "steps": steps}):
            check(Case(onebit_add_decoded, inputs, {"out": out}, {"scale": scale}, pitch=3), on, n % 3)
