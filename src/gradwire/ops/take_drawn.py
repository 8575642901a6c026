"""The elements that a random draw keeps, side by side, and where they were, in one pass."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._marks import check_entries, drawn, take_where
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["take_drawn"]


def _check(
    x: Tensor, whole_counts: Tensor, whole_values: Tensor, whole_indices: Tensor,
    counts: Tensor, values: Tensor, indices: Tensor, s: float, key: int, step: int,  # noqa: ARG001
) -> None:  # fmt: skip
    check_vector("take_drawn.x", x, torch.float32, x)
    check_entries("take_drawn", "whole_", whole_counts, whole_values, whole_indices, x)
    check_entries("take_drawn", "", counts, values, indices, x)


@operation(
    "take_drawn(Tensor x, Tensor(a!) whole_counts, Tensor(b!) whole_values, Tensor(c!) whole_indices,"
    " Tensor(d!) counts, Tensor(e!) values, Tensor(f!) indices, float s, int key, int step) -> ()",
    _check,
)
def take_drawn(
    x: Tensor, whole_counts: Tensor, whole_values: Tensor, whole_indices: Tensor,
    counts: Tensor, values: Tensor, indices: Tensor, s: float, key: int, step: int,
) -> None:  # fmt: skip
    """Write what ``mark_drawn`` marks: |x| >= s, and each other element with probability |x| / s.

    Args:
        x: float32, n elements; not changed.
        whole_counts: int32, ceil(n / 65536): how many reach s in each segment.
        whole_values: float32, room for the first of them; what is not needed stays as it is.
        whole_indices: int16, as many: the low 16 bits of their indices.
        counts: int32, ceil(n / 65536): how many of the others are kept.
        values: float32, as ``whole_values``.
        indices: int16, as ``whole_indices``.
        s: > 0, rounded to float32.
        key: of the random stream.
        step: of the random stream.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> counts, whole_counts = torch.empty(1, dtype=torch.int32), torch.empty(1, dtype=torch.int32)
    >>> values, indices = torch.zeros(3), torch.zeros(3, dtype=torch.int16)
    >>> x = torch.tensor([1.0, -3.0, 2.0, 0.0])
    >>> take_drawn(x, whole_counts, values, indices, counts, values.clone(), indices.clone(), 2.0, key=1, step=0)
    >>> values.tolist(), indices.tolist(), counts.item() <= 1
    ([-3.0, 2.0, 0.0], [1, 2, 0], True)
    """
    whole, kept = drawn(x, s, key, step)
    take_where(x, whole, whole_counts, whole_values, whole_indices)
    take_where(x, kept, counts, values, indices)


@take_drawn.kernel("CPU")
def _cpu(
    x: Tensor, whole_counts: Tensor, whole_values: Tensor, whole_indices: Tensor,
    counts: Tensor, values: Tensor, indices: Tensor, s: float, key: int, step: int,
) -> None:  # fmt: skip
    whole = whole_counts.data_ptr(), whole_values.data_ptr(), whole_indices.data_ptr(), whole_values.numel()
    others = counts.data_ptr(), values.data_ptr(), indices.data_ptr(), values.numel()
    kernels.take_drawn(x.data_ptr(), *whole, *others, s, key, step, x.numel(), torch.get_num_threads())
