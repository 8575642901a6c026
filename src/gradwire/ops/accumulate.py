"""The first step of error feedback alone, for methods whose encoder does not look at every element."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._feedback import compensate
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["accumulate"]


def _check(grad: Tensor, residual: Tensor, status: Tensor | None = None) -> None:
    check_vector("accumulate.grad", grad, torch.float32, grad)
    check_vector("accumulate.residual", residual, torch.float32, grad, grad.numel())
    check_status("accumulate.status", status, grad)


@operation("accumulate(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!)? status=None) -> ()", _check)
def accumulate(grad: Tensor, residual: Tensor, status: Tensor | None = None) -> None:
    """Add the gradient to the residual, in one pass: residual = residual + grad.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements.
        status: int32, 1 element, or None: bit 0 is set where the sum is not finite. Copying ``grad`` back to
            ``residual`` then undoes the step.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> grad, residual = torch.tensor([1.0, 2.0]), torch.tensor([0.5, -2.0])
    >>> accumulate(grad, residual, torch.zeros(1, dtype=torch.int32))
    >>> grad.tolist(), residual.tolist()
    ([0.5, -2.0], [1.5, 0.0])
    """
    residual.copy_(compensate(grad, residual, status))


@accumulate.kernel("CPU")
def _cpu(grad: Tensor, residual: Tensor, status: Tensor | None = None) -> None:
    flag = 0 if status is None else status.data_ptr()
    kernels.accumulate(grad.data_ptr(), residual.data_ptr(), flag, grad.numel(), torch.get_num_threads())
