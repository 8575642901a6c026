"""The largest magnitude, the sum and the sum of squares of each segment of a tensor."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._moments import check_table, write_moments
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["moments"]


def _check(x: Tensor, table: Tensor, centred: bool) -> None:  # noqa: ARG001
    check_vector("moments.x", x, torch.float32, x)
    check_table("moments", table, x)


@operation("moments(Tensor x, Tensor(a!) table, bool centred) -> ()", _check)
def moments(x: Tensor, table: Tensor, centred: bool) -> None:
    """Measure each segment of 4096 elements: largest |x|, origin o, sum of x - o, sum of (x - o)**2.

    Where squares might vanish or overflow the sums are in units of a power of two that follows from the largest |x|.

    Args:
        x: float32, n elements; not changed.
        table: float32, 4 * ceil(n / 4096): four numbers for each segment, in this order. A NaN is the largest of all.
        centred: the origin is the segment's first element, for a variance; else 0, for a length.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> table = torch.empty(4)
    >>> moments(torch.tensor([3.0, -5.0, 1.0]), table, centred=True)
    >>> table.tolist()
    [5.0, 3.0, -10.0, 68.0]
    """
    write_moments(x, table, centred)


@moments.kernel("CPU")
def _cpu(x: Tensor, table: Tensor, centred: bool) -> None:
    kernels.moments(x.data_ptr(), table.data_ptr(), centred, x.numel(), torch.get_num_threads())
