"""Running mean of gradients, shared by the references of the operations that keep one."""

import torch
from torch import Tensor

from gradwire.kernels.float32 import float32

__all__ = ["advance"]


def advance(grad: Tensor, momentum: Tensor, beta: float, status: Tensor | None) -> None:
    """Mix ``grad`` into ``momentum``.

    With a status, the old momentum goes to ``grad`` and bit 0 of the status is set where the new one is not finite.
    """
    now = momentum * float32(beta) + grad * float32(1 - beta)
    if status is not None:
        grad.copy_(momentum)
        status |= ~torch.isfinite(now).all()
    momentum.copy_(now)
