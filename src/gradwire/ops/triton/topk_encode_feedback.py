"""The k largest magnitudes of a gradient and what was not sent before; the residual keeps the others."""

from torch import Tensor

from gradwire.ops.triton._accumulate import add_residual
from gradwire.ops.triton._topk import write_largest

__all__ = ["topk_encode_feedback"]


def topk_encode_feedback(
    grad: Tensor, residual: Tensor, values: Tensor, indices: Tensor, counts: Tensor, status: Tensor | None = None
) -> None:
    """As the operation."""
    add_residual(grad, residual, status)
    write_largest(residual, values, indices, counts, clear=True)
