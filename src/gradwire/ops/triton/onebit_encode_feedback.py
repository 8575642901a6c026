"""1-bit codes of a gradient with its residual, in one pass over memory."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._codes import pack, places
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._status import flag_nonfinite

__all__ = ["onebit_encode_feedback"]


@triton.jit
def _kernel(
    grad: tl.tensor,
    residual: tl.tensor,
    codes: tl.tensor,
    status: tl.tensor,
    step: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    threshold: tl.float32,
    BYTES: tl.constexpr,
) -> None:
    byte, i = places(BYTES, 1)
    inside = i < n
    old = tl.load(residual + i, mask=inside, other=0.0)
    x = old + tl.load(grad + i, mask=inside, other=0.0)
    distance = 1.0
    if step is not None:
        distance = tl.load(step)
    above = x > distance * threshold
    rest = tl.where(above, x - distance, x + distance)
    if status is not None:
        tl.store(grad + i, old, mask=inside)
        flag_nonfinite(tl.where(inside, rest, 0.0), status)
    tl.store(codes + byte, pack((above & inside).to(tl.int32), 1), mask=byte < size)
    tl.store(residual + i, rest, mask=inside)


def onebit_encode_feedback(
    grad: Tensor,
    residual: Tensor,
    codes: Tensor,
    threshold: float,
    status: Tensor | None = None,
    step: Tensor | None = None,
) -> None:
    """As the operation."""
    n, size, each = grad.numel(), codes.numel(), BLOCK // 8
    grid, tensors = (triton.cdiv(size, each),), (grad, residual, codes, status, step)
    launch(_kernel, grid, *tensors, n, size, float32(threshold), BYTES=each)
