"""The left factor of a matrix that belongs to a right one."""

import torch
from torch import Tensor

from gradwire.ops._lowrank import check_factors, sizes_of, write_left
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["lowrank_left"]


def _check(x: Tensor, right: Tensor, left: Tensor, rank: int) -> None:
    check_factors("lowrank_left", x, "x", left, right, rank)


@operation("lowrank_left(Tensor x, Tensor right, Tensor(a!) left, int rank) -> ()", _check)
def lowrank_left(x: Tensor, right: Tensor, left: Tensor, rank: int) -> None:
    """Multiply a matrix with the rows of a thin factor: left = right X^T, in the order of ``ops._lowrank``.

    Args:
        x: float32, the m rows of L elements one after the other.
        right: float32, ``rank`` rows of L.
        left: float32, ``rank`` rows of m.
        rank: at least 1. From about 16 on a BLAS is faster.

    Raises:
        ConfigError: a tensor or a number is not of this form.

    >>> left = torch.empty(2)
    >>> lowrank_left(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, -1.0]), left, rank=1)
    >>> left.tolist()
    [-1.0, -1.0]
    """
    write_left(x, right, left, rank)


@lowrank_left.kernel("CPU")
def _cpu(x: Tensor, right: Tensor, left: Tensor, rank: int) -> None:
    sizes = sizes_of(left, right, rank)
    kernels.lowrank_left(x.data_ptr(), 0, 0, right.data_ptr(), left.data_ptr(), rank, *sizes, torch.get_num_threads())
