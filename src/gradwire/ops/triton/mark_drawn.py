"""A bit for each element that a random draw keeps."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._compact import PART, write_counts
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._marks import room_for_counts, store_marks
from gradwire.ops.triton._philox import philox_table
from gradwire.ops.triton._tile import elements

__all__ = ["mark_drawn"]

_UNIT = tl.constexpr(2.0**-32)


@triton.jit
def _uniform(key: tl.tensor, step: tl.tensor, PART: tl.constexpr) -> tl.tensor:
    """The 32 bits of each element of this part, as the middles of 2**32 parts of (0, 1), in float64."""
    word = tl.reshape(philox_table(elements(PART // 4), key, step), (PART,))
    return ((word ^ 0x80000000).to(tl.float64) + 0.5) * _UNIT


@triton.jit(do_not_specialize=["key", "step"])
def _kernel(
    x: tl.tensor,
    bitmap: tl.tensor,
    named: tl.tensor,
    whole: tl.tensor,
    whole_named: tl.tensor,
    n: tl.tensor,
    s: tl.float32,
    key: tl.int64,
    step: tl.int64,
    PART: tl.constexpr,
) -> None:
    i = elements(PART)
    size = tl.abs(tl.load(x + i, mask=i < n, other=0.0))
    above = (i < n) & (size >= s)
    drawn = (i < n) & (_uniform(key, step, PART) * s < size.to(tl.float64))
    store_marks(above, whole, whole_named, n, PART)
    store_marks(drawn & ~above, bitmap, named, n, PART)


def mark_drawn(
    x: Tensor, bitmap: Tensor, counts: Tensor, whole: Tensor, whole_counts: Tensor, s: float, key: int, step: int
) -> None:
    """As the operation."""
    n = x.numel()
    named, whole_named = room_for_counts(x, n), room_for_counts(x, n)
    outputs = bitmap, named, whole, whole_named
    launch(_kernel, (named.numel(),), x, *outputs, n, float32(s), key, step, PART=PART)
    write_counts(named.cumsum(0), counts)
    write_counts(whole_named.cumsum(0), whole_counts)
