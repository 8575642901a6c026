"""First step of error feedback, shared by the references of the fused operations."""

import torch
from torch import Tensor

__all__ = ["compensate"]


def compensate(grad: Tensor, residual: Tensor, status: Tensor | None) -> Tensor:
    """Compute the sum residual + grad, in new memory.

    With a status, the old residual goes to ``grad`` and bit 0 of the status is set where the sum is not finite.
    """
    x = residual + grad
    if status is not None:
        grad.copy_(residual)
        status |= ~torch.isfinite(x).all()
    return x
