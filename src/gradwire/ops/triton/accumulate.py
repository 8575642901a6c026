"""The sum of a gradient and its residual."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._status import compensate
from gradwire.ops.triton._tile import elements

__all__ = ["accumulate"]


@triton.jit
def _kernel(grad: tl.tensor, residual: tl.tensor, status: tl.tensor, n: tl.tensor, BLOCK: tl.constexpr) -> None:
    i = elements(BLOCK)
    tl.store(residual + i, compensate(grad, residual, status, i, n), mask=i < n)


def accumulate(grad: Tensor, residual: Tensor, status: Tensor | None = None) -> None:
    """As the operation."""
    n = grad.numel()
    launch(_kernel, (triton.cdiv(n, BLOCK),), grad, residual, status, n, BLOCK=BLOCK)
