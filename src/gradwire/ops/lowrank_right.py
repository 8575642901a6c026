"""The right factor of a matrix that belongs to a left one."""

import torch
from torch import Tensor

from gradwire.ops._lowrank import check_factors, sizes_of, write_right
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["lowrank_right"]


def _check(x: Tensor, left: Tensor, right: Tensor, rank: int) -> None:
    check_factors("lowrank_right", x, "x", left, right, rank)


@operation("lowrank_right(Tensor x, Tensor left, Tensor(a!) right, int rank) -> ()", _check)
def lowrank_right(x: Tensor, left: Tensor, right: Tensor, rank: int) -> None:
    """Add up the rows of a matrix, each times an element of a thin factor: right = left X, as in ``ops._lowrank``.

    Args:
        x: float32, the m rows of L elements one after the other.
        left: float32, ``rank`` rows of m.
        right: float32, ``rank`` rows of L.
        rank: at least 1. From about 16 on a BLAS is faster.

    Raises:
        ConfigError: a tensor or a number is not of this form.

    >>> right = torch.empty(2)
    >>> lowrank_right(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, -1.0]), right, rank=1)
    >>> right.tolist()
    [-2.0, -2.0]
    """
    write_right(x, left, right, rank)


@lowrank_right.kernel("CPU")
def _cpu(x: Tensor, left: Tensor, right: Tensor, rank: int) -> None:
    sizes = sizes_of(left, right, rank)
    kernels.lowrank_right(x.data_ptr(), 0, 0, left.data_ptr(), right.data_ptr(), rank, *sizes, torch.get_num_threads())
