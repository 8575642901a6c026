"""2-bit codes of what reaches a level that differs a little between elements, without a residual."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._codes import places
from gradwire.ops.triton._dither import dither
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._twobit import store_codes

__all__ = ["dithered_encode"]


@triton.jit
def _kernel(
    x: tl.tensor, codes: tl.tensor, level: tl.tensor, n: tl.tensor, size: tl.tensor, BYTES: tl.constexpr
) -> None:
    byte, i = places(BYTES, 2)
    inside = i < n
    store_codes(tl.load(x + i, mask=inside, other=0.0), inside, tl.load(level) * dither(i), codes, byte, size)


def dithered_encode(x: Tensor, codes: Tensor, level: Tensor) -> None:
    """As the operation."""
    size = codes.numel()
    launch(_kernel, (triton.cdiv(size, BLOCK // 4),), x, codes, level, x.numel(), size, BYTES=BLOCK // 4)
