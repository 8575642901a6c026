import torch

from gradwire.kernels import swap
from tests.ops.harness import Case, check_against_reference, gradient, sweep


@sweep
def test_against_the_reference(n, threads, offset):
    case = Case(swap, {}, {"a": gradient(n, 1, finite=False), "b": gradient(n, 2, finite=False)})
    check_against_reference(case, threads, offset)


def test_twice_is_nothing():
    a, b = gradient(1000, 1), gradient(1000, 2)
    old_a, old_b = a.clone(), b.clone()
    swap(a, b)
    assert torch.equal(a, old_b)
    assert torch.equal(b, old_a)
    swap(a, b)
    assert torch.equal(a, old_a)
    assert torch.equal(b, old_b)
