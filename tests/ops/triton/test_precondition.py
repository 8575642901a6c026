import pytest
import torch

from gradwire.kernels import precondition, precondition_update
from gradwire.kernels.sums import SUM_BLOCK
from tests.cases import pairwise
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


@sizes
@pytest.mark.parametrize("bad", [True, False])
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("unit", [0.0, 1.0, 2.0**-90, 2.0**90])
def test_scales_follow(on, n, bad, finite, unit):
    outputs = {"out": gradient(n, 4, finite=finite).clamp(-100, 100), "scale": scales(n, 5) * unit}
    if not finite and n > 2:
        outputs["out"][n // 2], outputs["out"][n // 3] = float("nan"), float("inf")
    case = Case(precondition_update, {"bad": torch.tensor([bad])}, outputs, {"beta": 0.9, "floor": 0.05})
    check(case, on, n % 3)


@pairwise
@pytest.mark.parametrize("count", [2 * SUM_BLOCK - 1, 5 * SUM_BLOCK, 9 * SUM_BLOCK + 1])
@pytest.mark.parametrize("unit", [0.0, 1.0])
def test_scales_of_several_blocks_follow(on, count, unit):
    outputs = {"out": gradient(count, 4).clamp(-100, 100), "scale": scales(count, 5) * unit}
    case = Case(precondition_update, {"bad": torch.tensor([False])}, outputs, {"beta": 0.9, "floor": 0.05})
    check(case, on, 1)
