"""The running mean of gradients, shared by the references of the operations that keep one."""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_status, check_vector, float32

__all__ = ["advance", "check_momentum"]


def check_momentum(op: str, grad: Tensor, momentum: Tensor, beta: float, status: Tensor | None) -> None:
    require(0 <= beta < 1, f"{op}.beta", "in [0, 1)", beta)
    check_vector(f"{op}.grad", grad, torch.float32, grad)
    check_vector(f"{op}.momentum", momentum, torch.float32, grad, grad.numel())
    check_status(f"{op}.status", status, grad)


def advance(grad: Tensor, momentum: Tensor, beta: float, status: Tensor | None) -> None:
    """Mix ``grad`` into ``momentum``.

    With a status, the old momentum goes to ``grad`` and bit 0 of the status is set where the new one is not finite.
    """
    now = momentum * float32(beta) + grad * float32(1 - beta)
    if status is not None:
        grad.copy_(momentum)
        status |= ~torch.isfinite(now).all()
    momentum.copy_(now)
