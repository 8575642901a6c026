"""The moments of the magnitudes between two thresholds."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector, float32
from gradwire.ops._marks import check_tail, write_tail
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["tail_moments"]


def _check(x: Tensor, table: Tensor, low: float, high: float, unit: float) -> None:  # noqa: ARG001
    check_vector("tail_moments.x", x, torch.float32, x)
    check_tail("tail_moments", table, x)


@operation("tail_moments(Tensor x, Tensor(a!) table, float low, float high, float unit) -> ()", _check)
def tail_moments(x: Tensor, table: Tensor, low: float, high: float, unit: float) -> None:
    """Measure each segment of 1024 elements: the largest |x|, and of low < |x| < high the count and two sums.

    The sums are those of y and of y^2, y = (|x| - low) * unit, in float32 and in the order of 16 lanes.

    Args:
        x: float32, n elements; not changed.
        table: float32, 4 * ceil(n / 1024): four numbers for each segment, in this order. A NaN is the largest of all.
        low: >= 0, rounded to float32.
        high: rounded to float32; may be infinite.
        unit: a power of two, so that squares neither overflow nor vanish.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> table = torch.empty(4)
    >>> tail_moments(torch.tensor([3.0, -5.0, 1.0, 9.0]), table, low=2.0, high=6.0, unit=1.0)
    >>> table.tolist()
    [9.0, 2.0, 4.0, 10.0]
    """
    write_tail(x, table, float32(low), float32(high), float32(unit))


@tail_moments.kernel("CPU")
def _cpu(x: Tensor, table: Tensor, low: float, high: float, unit: float) -> None:
    kernels.tail_moments(x.data_ptr(), table.data_ptr(), low, high, unit, x.numel(), torch.get_num_threads())
