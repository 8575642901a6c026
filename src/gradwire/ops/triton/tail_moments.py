"""The moments of the magnitudes between two thresholds."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops._marks import TAIL_SEGMENT
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._select import magnitudes
from gradwire.ops.triton._signs import ROWS, blocks, total_of_16

__all__ = ["tail_moments"]

_LANES = tl.constexpr(16)


@triton.jit
def _kernel(
    x: tl.tensor,
    table: tl.tensor,
    n: tl.tensor,
    count: tl.tensor,
    low: tl.float32,
    high: tl.float32,
    unit: tl.float32,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    segment = blocks(ROWS)
    largest = tl.zeros((ROWS, _LANES), tl.int32)
    inside_of = tl.zeros((ROWS, _LANES), tl.int32)
    sums = tl.zeros((ROWS, _LANES), tl.float32)
    squares = tl.zeros((ROWS, _LANES), tl.float32)
    for start in range(0, SIZE, _LANES):
        i = (segment * SIZE + start)[:, None] + tl.arange(0, _LANES)[None, :]
        bits = tl.maximum(magnitudes(x, i, n), 0)
        value = bits.to(tl.float32, bitcast=True)
        inside = (value > low) & (value < high)
        y = tl.where(inside, (value - low) * unit, 0.0)
        largest = tl.maximum(largest, bits)
        inside_of += inside.to(tl.int32)
        sums += y
        squares += y * y
    row, there = table + 4 * segment, segment < count
    tl.store(row, tl.max(largest, axis=1).to(tl.float32, bitcast=True), mask=there)
    tl.store(row + 1, tl.sum(inside_of, axis=1).to(tl.float32), mask=there)
    tl.store(row + 2, total_of_16(sums, ROWS), mask=there)
    tl.store(row + 3, total_of_16(squares, ROWS), mask=there)


def tail_moments(x: Tensor, table: Tensor, low: float, high: float, unit: float) -> None:
    """As the operation."""
    n, count = x.numel(), table.numel() // 4
    limits = float32(low), float32(high), float32(unit)
    launch(_kernel, (triton.cdiv(count, ROWS),), x, table, n, count, *limits, SIZE=TAIL_SEGMENT, ROWS=ROWS)
