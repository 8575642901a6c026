"""A bit for each element that is not between two thresholds."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._compact import PART, write_counts
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._marks import room_for_counts, store_marks
from gradwire.ops.triton._tile import elements

__all__ = ["mark_beyond"]


@triton.jit
def _kernel(
    x: tl.tensor,
    bitmap: tl.tensor,
    named: tl.tensor,
    n: tl.tensor,
    high: tl.float32,
    low: tl.float32,
    PART: tl.constexpr,
) -> None:
    i = elements(PART)
    value = tl.load(x + i, mask=i < n, other=0.0)
    between = (value > -low) & (value < high)
    store_marks((i < n) & ~between, bitmap, named, n, PART)


def mark_beyond(x: Tensor, bitmap: Tensor, counts: Tensor, high: float, low: float) -> None:
    """As the operation."""
    n = x.numel()
    named = room_for_counts(x, n)
    launch(_kernel, (named.numel(),), x, bitmap, named, n, float32(high), float32(low), PART=PART)
    write_counts(named.cumsum(0), counts)
