"""The elements that are not between two thresholds, side by side, and where they were, in one pass."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._marks import beyond, check_entries, take_where
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["take_beyond"]


def _check(x: Tensor, counts: Tensor, values: Tensor, indices: Tensor, high: float, low: float) -> None:  # noqa: ARG001
    check_vector("take_beyond.x", x, torch.float32, x)
    check_entries("take_beyond", "", counts, values, indices, x)


@operation(
    "take_beyond(Tensor x, Tensor(a!) counts, Tensor(b!) values, Tensor(c!) indices, float high, float low) -> ()",
    _check,
)
def take_beyond(x: Tensor, counts: Tensor, values: Tensor, indices: Tensor, high: float, low: float) -> None:
    """Write what ``mark_beyond`` marks: x >= high, x <= -low, and NaN.

    Args:
        x: float32, n elements; not changed.
        counts: int32, ceil(n / 65536): how many there are in each segment of 65536 elements.
        values: float32, room for the first of them; what is not needed stays as it is.
        indices: int16, as many: the low 16 bits of their indices.
        high: rounded to float32.
        low: rounded to float32.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> counts, values, indices = torch.empty(1, dtype=torch.int32), torch.zeros(3), torch.zeros(3, dtype=torch.int16)
    >>> take_beyond(torch.tensor([1.0, -3.0, 2.0, 0.0]), counts, values, indices, high=2.0, low=3.0)
    >>> counts.tolist(), values.tolist(), indices.tolist()
    ([2], [-3.0, 2.0, 0.0], [1, 2, 0])
    """
    take_where(x, beyond(x, high, low), counts, values, indices)


@take_beyond.kernel("CPU")
def _cpu(x: Tensor, counts: Tensor, values: Tensor, indices: Tensor, high: float, low: float) -> None:
    addresses = x.data_ptr(), counts.data_ptr(), values.data_ptr(), indices.data_ptr()
    kernels.take_beyond(*addresses, values.numel(), high, low, x.numel(), torch.get_num_threads())
