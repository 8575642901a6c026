"""2-bit codes of what is beyond a threshold, with a residual, in one pass over memory."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._codes import places
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._status import compensate
from gradwire.ops.triton._strom import store_beyond

__all__ = ["strom_encode_feedback"]


@triton.jit
def _kernel(
    grad: tl.tensor,
    residual: tl.tensor,
    codes: tl.tensor,
    status: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    threshold: tl.float32,
    BYTES: tl.constexpr,
) -> None:
    byte, i = places(BYTES, 2)
    x = compensate(grad, residual, status, i, n)
    store_beyond(x, threshold, codes, byte, size)
    kept = tl.where(x > threshold, x - threshold, tl.where(x < -threshold, x + threshold, x))
    tl.store(residual + i, kept, mask=i < n)


def strom_encode_feedback(
    grad: Tensor, residual: Tensor, codes: Tensor, threshold: float, status: Tensor | None = None
) -> None:
    """As the operation."""
    n, size, each = grad.numel(), codes.numel(), BLOCK // 4
    t = float32(threshold)
    launch(_kernel, (triton.cdiv(size, each),), grad, residual, codes, status, n, size, t, BYTES=each)
