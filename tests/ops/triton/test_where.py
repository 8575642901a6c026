import pytest
import torch

from gradwire.ops import copy_where, fill_where
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import check, sizes

WHEN = [None, torch.tensor([False]), torch.tensor([True])]


@sizes
@pytest.mark.parametrize("when", WHEN)
def test_copy_where(on, n, when):
    inputs = {"source": gradient(n, 1, finite=False)} | ({} if when is None else {"when": when})
    check(Case(copy_where, inputs, {"target": gradient(n, 2)}), on, n % 3)


@sizes
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("value", [0.0, float("nan"), 0.3])
def test_fill_where(on, n, when, value):
    inputs = {} if when is None else {"when": when}
    check(Case(fill_where, inputs, {"out": gradient(n, 2)}, {"value": value}), on, n % 3)
