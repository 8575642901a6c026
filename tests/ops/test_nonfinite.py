import pytest
import torch

from gradwire.kernels import nonfinite
from tests.cases import pairwise
from tests.ops.harness import SIZES, Case, check_against_reference, gradient, sweep


@sweep
@pytest.mark.parametrize("finite", [True, False])
def test_against_the_reference(n, threads, offset, finite):
    case = Case(nonfinite, {"x": gradient(n, 1, finite=finite)}, {"status": torch.tensor([6], dtype=torch.int32)})
    check_against_reference(case, threads, offset)


@pairwise
@pytest.mark.parametrize("n", SIZES[1:-1])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_one_value_anywhere_is_seen(n, value):
    for place in {0, n // 2, n - 1}:
        x = torch.full((n,), 3.4e38)
        x[place] = value
        case = Case(nonfinite, {"x": x}, {"status": torch.zeros(1, dtype=torch.int32)})
        check_against_reference(case, 1, 0)
        status = torch.zeros(1, dtype=torch.int32)
        nonfinite(x, status)
        assert status.item() == 1
