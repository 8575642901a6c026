import pytest
import torch

from gradwire.kernels import scale
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import check, sizes


@sizes
@pytest.mark.parametrize("watched", [True, False])
def test_against_the_reference(on, n, watched):
    outputs = {"x": gradient(n, 1, finite=False)}
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    check(Case(scale, {}, outputs, {"factor": 1 / 3} if watched else {"factor": 1 / 3, "status": None}), on, n % 3)
