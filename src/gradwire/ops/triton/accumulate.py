"""The sum of a gradient and its residual."""

from torch import Tensor

from gradwire.ops.triton._accumulate import add_residual

__all__ = ["accumulate"]


def accumulate(grad: Tensor, residual: Tensor, status: Tensor | None = None) -> None:
    """As the operation."""
    add_residual(grad, residual, status)
