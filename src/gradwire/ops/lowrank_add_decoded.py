"""The product of two thin factors, added to a matrix."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, float32
from gradwire.ops._lowrank import check_factors, sizes_of
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["lowrank_add_decoded"]


def _check(
    left: Tensor,
    right: Tensor,
    out: Tensor,
    rank: int,
    scale: float,  # noqa: ARG001
    status: Tensor | None = None,
) -> None:
    check_factors("lowrank_add_decoded", out, "out", left, right, rank)
    check_status("lowrank_add_decoded.status", status, out)


@operation(
    "lowrank_add_decoded(Tensor left, Tensor right, Tensor(a!) out, int rank, float scale, Tensor(b!)? status=None)"
    " -> ()",
    _check,
)
def lowrank_add_decoded(
    left: Tensor, right: Tensor, out: Tensor, rank: int, scale: float, status: Tensor | None = None
) -> None:
    """Add an outer product for each row of the factors, in order: out = out + (scale * left[k]) right[k]^T.

    Args:
        left: float32, ``rank`` rows of m.
        right: float32, ``rank`` rows of L.
        out: float32, the m rows of L elements one after the other.
        rank: at least 1. From about 16 on a BLAS is faster.
        scale: of the product.
        status: int32, 1 element, or None: bit 0 is set where the result is not finite.

    Raises:
        ConfigError: a tensor or a number is not of this form.

    >>> out = torch.zeros(4)
    >>> lowrank_add_decoded(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), out, rank=1, scale=0.5)
    >>> out.tolist()
    [1.5, 2.0, 3.0, 4.0]
    """
    m, length = sizes_of(left, right, rank)
    matrix = out.view(m, length)
    for column, row in zip(left.view(rank, m), right.view(rank, length), strict=True):
        matrix += (float32(scale) * column).unsqueeze(1) * row
    if status is not None:
        status |= ~torch.isfinite(out).all()


@lowrank_add_decoded.kernel("CPU")
def _cpu(left: Tensor, right: Tensor, out: Tensor, rank: int, scale: float, status: Tensor | None = None) -> None:
    flag, sizes = 0 if status is None else status.data_ptr(), sizes_of(left, right, rank)
    addresses = left.data_ptr(), right.data_ptr(), out.data_ptr()
    kernels.lowrank_add_decoded(*addresses, rank, scale, flag, *sizes, torch.get_num_threads())
