import pytest
import torch

from gradwire.ops import strom_encode, strom_encode_feedback
from gradwire.ops._codes import code_bytes
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import check, sizes


@sizes
@pytest.mark.parametrize("threshold", [0.5, 1e-45, 3e38])
def test_encode(on, n, threshold):
    codes = {"codes": ((code_bytes(n, 2),), torch.uint8)}
    case = Case(strom_encode, {"x": gradient(n, 1, finite=False)}, codes, {"threshold": threshold})
    check(case, on, n % 3)


@sizes
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(on, n, finite, watched):
    outputs = {
        "grad": gradient(n, 2, finite=finite),
        "residual": gradient(n, 3),
        "codes": ((code_bytes(n, 2),), torch.uint8),
    }
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    check(Case(strom_encode_feedback, {}, outputs, {"threshold": 0.5}), on, n % 3)
