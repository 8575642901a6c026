"""A gradient in units of a scale."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._precondition import divisor
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["precondition"]


def _check(grad: Tensor, scale: Tensor, status: Tensor | None = None) -> None:
    check_vector("precondition.grad", grad, torch.float32, grad)
    check_vector("precondition.scale", scale, torch.float32, grad, grad.numel())
    check_status("precondition.status", status, grad)


@operation("precondition(Tensor(a!) grad, Tensor scale, Tensor(b!)? status=None) -> ()", _check)
def precondition(grad: Tensor, scale: Tensor, status: Tensor | None = None) -> None:
    """Divide a gradient by a scale, element by element: grad = grad / scale, where a scale of 0 counts as 1.

    Args:
        grad: float32, n elements.
        scale: float32, n elements, >= 0.
        status: int32, 1 element, or None: bit 0 is set where a quotient is not finite.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> grad = torch.tensor([1.0, -2.0])
    >>> precondition(grad, torch.tensor([4.0, 0.0]))
    >>> grad.tolist()
    [0.25, -2.0]
    """
    grad.div_(divisor(scale))
    if status is not None:
        status |= ~torch.isfinite(grad).all()


@precondition.kernel("CPU")
def _cpu(grad: Tensor, scale: Tensor, status: Tensor | None = None) -> None:
    flag = 0 if status is None else status.data_ptr()
    kernels.precondition(grad.data_ptr(), scale.data_ptr(), flag, grad.numel(), torch.get_num_threads())
