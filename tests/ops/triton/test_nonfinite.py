import pytest
import torch

from gradwire.ops import nonfinite
from tests.cases import pairwise
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import SIZES, check, sizes


@sizes
@pytest.mark.parametrize("finite", [True, False])
def test_against_the_reference(on, n, finite):
    status = torch.tensor([6], dtype=torch.int32)
    check(Case(nonfinite, {"x": gradient(n, 1, finite=finite)}, {"status": status}), on, n % 3)


@pairwise
@pytest.mark.parametrize("n", SIZES[1:-1])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_one_value_anywhere_is_seen(on, n, value):
    for place in {0, n // 2, n - 1}:
        x, status = torch.full((n,), 3.4e38), torch.zeros(1, dtype=torch.int32)
        x[place] = value
        on(nonfinite)(x=x, status=status)
        assert status.item() == 1
