"""The signs of a gradient with its residual, in one pass over memory."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._codes import places
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._signs import pack_signs
from gradwire.ops.triton._status import flag_nonfinite

__all__ = ["sign_encode_feedback"]


@triton.jit
def _kernel(
    grad: tl.tensor,
    residual: tl.tensor,
    codes: tl.tensor,
    status: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    BYTES: tl.constexpr,
) -> None:
    byte, i = places(BYTES, 1)
    inside = i < n
    old = tl.load(residual + i, mask=inside, other=0.0)
    x = old + tl.load(grad + i, mask=inside, other=0.0)
    if status is not None:
        tl.store(grad + i, old, mask=inside)
        flag_nonfinite(x, status)
    positive = x >= 0.0
    tl.store(codes + byte, pack_signs(positive & inside), mask=byte < size)
    tl.store(residual + i, tl.where(positive, x - 1.0, x + 1.0), mask=inside)


def sign_encode_feedback(grad: Tensor, residual: Tensor, codes: Tensor, status: Tensor | None = None) -> None:
    """As the operation."""
    n, size, each = grad.numel(), codes.numel(), BLOCK // 8
    launch(_kernel, (triton.cdiv(size, each),), grad, residual, codes, status, n, size, BYTES=each)
