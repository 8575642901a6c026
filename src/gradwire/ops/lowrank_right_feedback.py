"""The right factor of residual + grad that belongs to a left one."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._feedback import compensate
from gradwire.ops._lowrank import check_factors, sizes_of, write_right
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["lowrank_right_feedback"]


def _check(
    grad: Tensor, residual: Tensor, left: Tensor, right: Tensor, rank: int, status: Tensor | None = None
) -> None:
    check_factors("lowrank_right_feedback", residual, "residual", left, right, rank)
    check_vector("lowrank_right_feedback.grad", grad, torch.float32, residual, residual.numel())
    check_status("lowrank_right_feedback.status", status, residual)


@operation(
    "lowrank_right_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor left, Tensor(c!) right, int rank,"
    " Tensor(d!)? status=None) -> ()",
    _check,
)
def lowrank_right_feedback(
    grad: Tensor, residual: Tensor, left: Tensor, right: Tensor, rank: int, status: Tensor | None = None
) -> None:
    """Add the gradient to the residual, and multiply that: residual = residual + grad; right = left residual.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements: m rows of L.
        left: float32, ``rank`` rows of m.
        right: float32, ``rank`` rows of L.
        rank: at least 1. From about 16 on a BLAS is faster.
        status: int32, 1 element, or None: bit 0 is set where the sum is not finite.

    Raises:
        ConfigError: a tensor or a number is not of this form.

    >>> residual, right = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.empty(2)
    >>> lowrank_right_feedback(torch.ones(4), residual, torch.tensor([1.0, 0.0]), right, rank=1)
    >>> right.tolist()
    [2.0, 3.0]
    """
    residual.copy_(compensate(grad, residual, status))
    write_right(residual, left, right, rank)


@lowrank_right_feedback.kernel("CPU")
def _cpu(grad: Tensor, residual: Tensor, left: Tensor, right: Tensor, rank: int, status: Tensor | None = None) -> None:
    flag = 0 if status is None else status.data_ptr()
    addresses = residual.data_ptr(), grad.data_ptr(), flag, left.data_ptr(), right.data_ptr()
    kernels.lowrank_right(*addresses, rank, *sizes_of(left, right, rank), torch.get_num_threads())
