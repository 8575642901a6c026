"""A mean of signs becomes the sign of the majority."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._tile import elements

__all__ = ["sign_vote"]

_TIE = tl.constexpr(2.0**-12)


@triton.jit
def _kernel(mean: tl.tensor, n: tl.tensor, tie: tl.float32, BLOCK: tl.constexpr) -> None:
    i = elements(BLOCK)
    inside = i < n
    x = tl.load(mean + i, mask=inside)
    decided = tl.where(x > _TIE, 1.0, tl.where(x < -_TIE, -1.0, tie))
    tl.store(mean + i, tl.where(x == x, decided, x), mask=inside)


def sign_vote(mean: Tensor, tie: float) -> None:
    """As the operation."""
    n = mean.numel()
    launch(_kernel, (triton.cdiv(n, BLOCK),), mean, n, float(tie), BLOCK=BLOCK)
