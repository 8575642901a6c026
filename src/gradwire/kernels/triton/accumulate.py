"""First step of error feedback, for operations that then look at the sum more than once."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.triton.kernel_launch import BLOCK, launch
from gradwire.kernels.triton.status import compensate
from gradwire.kernels.triton.tile import elements

__all__ = ["add_residual"]


@triton.jit
def _kernel(grad, residual, status, n, BLOCK: tl.constexpr, program=None):
    i = elements(BLOCK, program)
    tl.store(residual + i, compensate(grad, residual, status, i, n), mask=i < n)


def add_residual(grad: Tensor, residual: Tensor, status: Tensor | None) -> None:
    """Add the gradient to ``residual``; with a status, the old contents go to ``grad``."""
    n = grad.numel()
    launch(_kernel, (triton.cdiv(n, BLOCK),), grad, residual, status, n, BLOCK=BLOCK)
