import pytest
import torch

from gradwire.kernels import nonfinite
from tests.cases import pairwise
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import SIZES, check, sizes


@sizes
@pytest.mark.parametrize("finite", [True, False])
def test_against_the_reference(on, n, finite):
    status = torch.tensor([6], dtype=torch.int32)
    check(Case(nonfinite, {"x": gradient(n, 1, finite=finite)}, {"status": status}), on, n % 3)


@sizes
@pytest.mark.parametrize("largest", [2.0**96, 2.0**95])
def test_what_is_infinite_times_the_factor_is_seen(on, n, largest):
    x, status = torch.full((n,), -largest), torch.zeros(1, dtype=torch.int32)
    on(nonfinite)(x=x, status=status, factor=2.0**32)
    assert status.item() == (n > 0 and largest == 2.0**96)


@pairwise
@pytest.mark.parametrize("n", SIZES[1:-1])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_one_value_anywhere_is_seen(on, n, value):
    for place in {0, n // 2, n - 1}:
        x, status = torch.full((n,), 3.4e38), torch.zeros(1, dtype=torch.int32)
        x[place] = value
        on(nonfinite)(x=x, status=status)
        assert status.item() == 1
