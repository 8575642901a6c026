import pytest
import torch

from gradwire.compressors.levels.ops import round_encode, round_keep
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import check, sizes

STREAM = {"key": -12345678901234567, "step": 2**31 + 5}


@sizes
@pytest.mark.parametrize(("bits", "levels"), [(2, 1), (5, 11), (8, 127)])
def test_round(on, n, bits, levels):
    codes = ((-(-n * bits // 8),), torch.uint8)
    for norm in (2.0, 0.0, float("inf"), float("nan")) if n <= 33 else (2.0,):
        given, arguments = torch.tensor([norm]), {"bits": bits, "levels": levels, **STREAM}
        check(Case(round_encode, {"x": gradient(n, 1), "norm": given}, {"codes": codes}, arguments), on, n % 3)
        written = {"residual": gradient(n, 1), "codes": codes}
        check(Case(round_keep, {"norm": given}, written, {"shrink": 0.7, **arguments}), on, n % 3)
