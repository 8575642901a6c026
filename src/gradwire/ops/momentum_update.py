"""The running mean of gradients."""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._momentum import advance
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["momentum_update"]


def _check(grad: Tensor, momentum: Tensor, beta: float, status: Tensor | None = None) -> None:
    require(0 <= beta < 1, "momentum_update.beta", "in [0, 1)", beta)
    check_vector("momentum_update.grad", grad, torch.float32, grad)
    check_vector("momentum_update.momentum", momentum, torch.float32, grad, grad.numel())
    check_status("momentum_update.status", status, grad)


@operation("momentum_update(Tensor(a!) grad, Tensor(b!) momentum, float beta, Tensor(c!)? status=None) -> ()", _check)
def momentum_update(grad: Tensor, momentum: Tensor, beta: float, status: Tensor | None = None) -> None:
    """Mix a gradient into the running mean: momentum = beta * momentum + (1 - beta) * grad.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old momentum.
        momentum: float32, n elements.
        beta: in [0, 1); beta and 1 - beta are rounded to float32. Larger: a longer memory.
        status: int32, 1 element, or None: bit 0 is set where the new momentum is not finite. Copying ``grad`` back to
            ``momentum`` then undoes the step.

    Raises:
        ConfigError: a tensor is not of this form, or beta is outside its range.

    >>> grad, momentum = torch.tensor([1.0, -1.0]), torch.tensor([1.0, 1.0])
    >>> momentum_update(grad, momentum, 0.75)
    >>> momentum
    tensor([1.0000, 0.5000])

    Source: J. Bernstein, J. Zhao, K. Azizzadenesheli, A. Anandkumar, "signSGD with Majority Vote is Communication
    Efficient and Fault Tolerant", ICLR 2019.
    """
    advance(grad, momentum, beta, status)


@momentum_update.kernel("CPU")
def _cpu(grad: Tensor, momentum: Tensor, beta: float, status: Tensor | None = None) -> None:
    flag = 0 if status is None else status.data_ptr()
    kernels.momentum_update(grad.data_ptr(), momentum.data_ptr(), beta, flag, grad.numel(), torch.get_num_threads())
