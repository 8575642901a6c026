"""The running mean of gradients."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._momentum import advance
from gradwire.ops.triton._tile import elements

__all__ = ["momentum_update"]


@triton.jit
def _kernel(
    grad: tl.tensor,
    momentum: tl.tensor,
    status: tl.tensor,
    n: tl.tensor,
    beta: tl.float32,
    rest: tl.float32,
    BLOCK: tl.constexpr,
) -> None:
    advance(grad, momentum, status, elements(BLOCK), n, beta, rest)


def momentum_update(grad: Tensor, momentum: Tensor, beta: float, status: Tensor | None = None) -> None:
    """As the operation."""
    n, factors = grad.numel(), (float32(beta), float32(1 - beta))
    launch(_kernel, (triton.cdiv(n, BLOCK),), grad, momentum, status, n, *factors, BLOCK=BLOCK)
