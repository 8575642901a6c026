"""A bit for each element that is not between two thresholds."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._marks import beyond, check_marks, write_marks
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["mark_beyond"]


def _check(x: Tensor, bitmap: Tensor, counts: Tensor, high: float, low: float) -> None:  # noqa: ARG001
    check_vector("mark_beyond.x", x, torch.float32, x)
    check_marks("mark_beyond", bitmap, counts, x)


@operation("mark_beyond(Tensor x, Tensor(a!) bitmap, Tensor(b!) counts, float high, float low) -> ()", _check)
def mark_beyond(x: Tensor, bitmap: Tensor, counts: Tensor, high: float, low: float) -> None:
    """Mark x >= high, x <= -low, and NaN.

    Args:
        x: float32, n elements; not changed.
        bitmap: uint8, ceil(n / 8): bit i % 8 of byte i / 8 is element i; the bits beyond the last are 0.
        counts: int32, ceil(n / 65536): how many are marked in each segment of 65536 elements.
        high: rounded to float32.
        low: rounded to float32; with ``low = high`` it is magnitudes that are compared.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> bitmap, counts = torch.empty(1, dtype=torch.uint8), torch.empty(1, dtype=torch.int32)
    >>> mark_beyond(torch.tensor([1.0, -3.0, 2.0, 0.0]), bitmap, counts, high=2.0, low=3.0)
    >>> bitmap.tolist(), counts.tolist()
    ([6], [2])
    """
    write_marks(beyond(x, high, low), bitmap, counts)


@mark_beyond.kernel("CPU")
def _cpu(x: Tensor, bitmap: Tensor, counts: Tensor, high: float, low: float) -> None:
    addresses = x.data_ptr(), bitmap.data_ptr(), counts.data_ptr()
    kernels.mark_beyond(*addresses, high, low, x.numel(), torch.get_num_threads())
