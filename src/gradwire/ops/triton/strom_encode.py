"""2-bit codes of what is beyond a threshold, without a residual."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._codes import places
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._strom import store_beyond

__all__ = ["strom_encode"]


@triton.jit
def _kernel(
    x: tl.tensor, codes: tl.tensor, n: tl.tensor, size: tl.tensor, threshold: tl.float32, BYTES: tl.constexpr
) -> None:
    byte, i = places(BYTES, 2)
    store_beyond(tl.load(x + i, mask=i < n, other=0.0), threshold, codes, byte, size)


def strom_encode(x: Tensor, codes: Tensor, threshold: float) -> None:
    """As the operation."""
    size = codes.numel()
    launch(_kernel, (triton.cdiv(size, BLOCK // 4),), x, codes, x.numel(), size, float32(threshold), BYTES=BLOCK // 4)
