"""First step of fused operations, shared by their references: a gradient is taken into what is kept."""

import torch
from torch import Tensor

from gradwire.kernels.float32 import float32

__all__ = ["advance", "compensate"]


def compensate(grad: Tensor, residual: Tensor, status: Tensor | None) -> Tensor:
    """Compute the sum residual + grad, in new memory.

    With a status, the old residual goes to ``grad`` and bit 0 of the status is set where the sum is not finite.
    """
    return _undoable(grad, residual, residual + grad, status)


def advance(grad: Tensor, momentum: Tensor, beta: float, status: Tensor | None) -> None:
    """Mix ``grad`` into ``momentum``, a running mean; a status is used as in ``compensate``."""
    now = momentum * float32(beta) + grad * float32(1 - beta)
    momentum.copy_(_undoable(grad, momentum, now, status))


def _undoable(grad: Tensor, before: Tensor, now: Tensor, status: Tensor | None) -> Tensor:
    """Return what is kept from ``now`` on; with a status ``before`` goes to ``grad``."""
    if status is not None:
        grad.copy_(before)
        status |= ~torch.isfinite(now).all()
    return now
