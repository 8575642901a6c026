"""The left factor of residual + grad that belongs to a right one."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._feedback import compensate
from gradwire.ops._lowrank import check_factors, sizes_of, write_left
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["lowrank_left_feedback"]


def _check(
    grad: Tensor, residual: Tensor, right: Tensor, left: Tensor, rank: int, status: Tensor | None = None
) -> None:
    check_factors("lowrank_left_feedback", residual, "residual", left, right, rank)
    check_vector("lowrank_left_feedback.grad", grad, torch.float32, residual, residual.numel())
    check_status("lowrank_left_feedback.status", status, residual)


@operation(
    "lowrank_left_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor right, Tensor(c!) left, int rank,"
    " Tensor(d!)? status=None) -> ()",
    _check,
)
def lowrank_left_feedback(
    grad: Tensor, residual: Tensor, right: Tensor, left: Tensor, rank: int, status: Tensor | None = None
) -> None:
    """Add the gradient to the residual, and multiply that: residual = residual + grad; left = right residual^T.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements: m rows of L.
        right: float32, ``rank`` rows of L.
        left: float32, ``rank`` rows of m.
        rank: at least 1. From about 16 on a BLAS is faster.
        status: int32, 1 element, or None: bit 0 is set where the sum is not finite.

    Raises:
        ConfigError: a tensor or a number is not of this form.

    >>> residual, left = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.empty(2)
    >>> lowrank_left_feedback(torch.ones(4), residual, torch.tensor([1.0, 0.0]), left, rank=1)
    >>> left.tolist()
    [2.0, 4.0]
    """
    residual.copy_(compensate(grad, residual, status))
    write_left(residual, right, left, rank)


@lowrank_left_feedback.kernel("CPU")
def _cpu(grad: Tensor, residual: Tensor, right: Tensor, left: Tensor, rank: int, status: Tensor | None = None) -> None:
    flag = 0 if status is None else status.data_ptr()
    addresses = residual.data_ptr(), grad.data_ptr(), flag, right.data_ptr(), left.data_ptr()
    kernels.lowrank_left(*addresses, rank, *sizes_of(left, right, rank), torch.get_num_threads())
