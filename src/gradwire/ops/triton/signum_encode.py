"""The signs of the running mean of gradients, in one pass over memory."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._codes import places
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._momentum import advance
from gradwire.ops.triton._signs import pack_signs

__all__ = ["signum_encode"]


@triton.jit
def _kernel(
    grad: tl.tensor,
    momentum: tl.tensor,
    codes: tl.tensor,
    status: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    beta: tl.float32,
    rest: tl.float32,
    BYTES: tl.constexpr,
) -> None:
    byte, i = places(BYTES, 1)
    positive = advance(grad, momentum, status, i, n, beta, rest) >= 0.0
    tl.store(codes + byte, pack_signs(positive & (i < n)), mask=byte < size)


def signum_encode(grad: Tensor, momentum: Tensor, codes: Tensor, beta: float, status: Tensor | None = None) -> None:
    """As the operation."""
    n, size, each = grad.numel(), codes.numel(), BLOCK // 8
    factors = float32(beta), float32(1 - beta)
    launch(_kernel, (triton.cdiv(size, each),), grad, momentum, codes, status, n, size, *factors, BYTES=each)
