import pytest
import torch

from gradwire.compressors.sketches.ops import sketch_estimate
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import check, sizes


@sizes
@pytest.mark.parametrize("rows", [1, 3, 5, 7])
@pytest.mark.parametrize(("key", "step"), [(0, 0), (-7, 2**40), (2**62, 3)])
def test_estimates(on, n, rows, key, step):
    for lines in (1, 3, 1000):
        table = gradient(rows * 16 * lines, 2, finite=False)
        arguments = {"rows": rows, "key": key, "step": step}
        check(Case(sketch_estimate, {"table": table}, {"out": ((n,), torch.float32)}, arguments), on, n % 3)
