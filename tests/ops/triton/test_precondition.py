import pytest
import torch

from gradwire.ops import precondition
from tests.ops.harness import Case, gradient
from tests.ops.test_precondition import scales
from tests.ops.triton.checks import check, sizes


@sizes
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
def test_against_the_reference(on, n, finite, watched):
    outputs = {"grad": gradient(n, 2, finite=finite)}
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    check(Case(precondition, {"scale": scales(n, 3)}, outputs), on, n % 3)
