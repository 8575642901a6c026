from gradwire.kernels import swap
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import check, sizes


@sizes
def test_against_the_reference(on, n):
    outputs = {"a": gradient(n, 1, finite=False), "b": gradient(n, 2, finite=False)}
    check(Case(swap, {}, outputs), on, n % 3)
