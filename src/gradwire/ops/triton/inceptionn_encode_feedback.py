"""Tagged codes of a compensated gradient: compensated, encoded, and what the codes say taken away."""

import torch
from torch import Tensor

from gradwire.ops.triton._accumulate import add_residual

__all__ = ["inceptionn_encode_feedback"]


def inceptionn_encode_feedback(
    grad: Tensor, residual: Tensor, used: Tensor, stream: Tensor, bound: int, status: Tensor | None = None
) -> None:
    """As the operation."""
    add_residual(grad, residual, status)
    torch.ops.gradwire.inceptionn_encode(residual, used, stream, bound)
    if residual.numel():
        torch.ops.gradwire.inceptionn_add_decoded(stream[None], residual, bound, -1.0)
