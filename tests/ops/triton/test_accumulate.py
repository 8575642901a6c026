import pytest
import torch

from gradwire.kernels import accumulate
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import check, sizes


@sizes
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
def test_against_the_reference(on, n, finite, watched):
    outputs = {"grad": gradient(n, 1, finite=finite), "residual": gradient(n, 2)}
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    check(Case(accumulate, {}, outputs), on, n % 3)
