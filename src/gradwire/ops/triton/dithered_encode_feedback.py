"""2-bit codes of what reaches a level that differs a little between elements, with a residual, in one pass."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._codes import places
from gradwire.ops.triton._dither import dither
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._status import flag_nonfinite
from gradwire.ops.triton._twobit import store_codes

__all__ = ["dithered_encode_feedback"]


@triton.jit
def _kernel(
    grad: tl.tensor,
    residual: tl.tensor,
    codes: tl.tensor,
    threshold: tl.tensor,
    level: tl.tensor,
    status: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    BYTES: tl.constexpr,
) -> None:
    byte, i = places(BYTES, 2)
    inside = i < n
    old = tl.load(residual + i, mask=inside, other=0.0)
    x = old + tl.load(grad + i, mask=inside, other=0.0)
    if status is not None:
        tl.store(grad + i, old, mask=inside)
        flag_nonfinite(x, status)
    least, sent = tl.load(level) * dither(i), tl.load(threshold)
    store_codes(x, inside, least, codes, byte, size)
    kept = tl.where(x >= least, x - sent, tl.where(x <= -least, x + sent, x))
    tl.store(residual + i, kept, mask=inside)


def dithered_encode_feedback(
    grad: Tensor, residual: Tensor, codes: Tensor, threshold: Tensor, level: Tensor, status: Tensor | None = None
) -> None:
    """As the operation."""
    n, size, each = grad.numel(), codes.numel(), BLOCK // 4
    grid = (triton.cdiv(size, each),)
    launch(_kernel, grid, grad, residual, codes, threshold, level, status, n, size, BYTES=each)
