"""The elements of largest magnitude of each of many tiles.

The k-th largest magnitude of a tile is found bit by bit, from the highest on: a bit is set if there still are k.
"""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._compact import rank
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._signs import blocks

__all__ = ["tile_topk"]

_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _magnitudes(x: tl.tensor, tile: tl.tensor, column: tl.tensor, count: tl.tensor, size: tl.tensor) -> tl.tensor:
    """The magnitudes in these columns of each tile as the integers of their bits; -1 where there are none."""
    inside = (tile < count)[:, None] & (column < size)[None, :]
    bits = tl.load(x + tile[:, None] * size + column[None, :], mask=inside, other=0.0).to(tl.int32, bitcast=True)
    return tl.where(inside, bits & _MAGNITUDE, -1)


@triton.jit
def _at_least(
    x: tl.tensor, tile: tl.tensor, limit: tl.tensor, count: tl.tensor, size: tl.tensor,
    ROWS: tl.constexpr, SPAN: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """How many magnitudes of each tile are at least its limit."""
    found = tl.zeros((ROWS,), tl.int32)
    for start in range(0, size, SPAN):
        magnitude = _magnitudes(x, tile, start + tl.arange(0, SPAN), count, size)
        found += tl.sum((magnitude >= limit[:, None]).to(tl.int32), axis=1)
    return found


@triton.jit
def _kernel(
    x: tl.tensor,
    values: tl.tensor,
    places: tl.tensor,
    count: tl.tensor,
    size: tl.tensor,
    k: tl.tensor,
    ROWS: tl.constexpr,
    SPAN: tl.constexpr,
) -> None:
    tile = blocks(ROWS)
    least = tl.zeros((ROWS,), tl.int32)
    for bit in range(31):
        higher = least | (1 << (30 - bit))
        least = tl.where(_at_least(x, tile, higher, count, size, ROWS, SPAN) >= k, higher, least)
    # No magnitude is larger than 2**31 - 1, that of a NaN: there the sum wraps to a limit that all would reach.
    larger = tl.where(least == _MAGNITUDE, 0, _at_least(x, tile, least + 1, count, size, ROWS, SPAN))
    ties, written = k - larger, tl.zeros((ROWS,), tl.int32)
    for start in range(0, size, SPAN):
        column = start + tl.arange(0, SPAN)
        magnitude = _magnitudes(x, tile, column, count, size)
        equal = magnitude == least[:, None]
        kept = (magnitude > least[:, None]) | (equal & (rank(equal, 1) < ties[:, None]))
        at = tile[:, None] * k + written[:, None] + rank(kept, 1)
        value = tl.load(x + tile[:, None] * size + column[None, :], mask=kept)
        tl.store(values + at, value, mask=kept)
        tl.store(places + at, tl.broadcast_to(column[None, :], (ROWS, SPAN)).to(tl.int16), mask=kept)
        ties -= tl.sum(equal.to(tl.int32), axis=1)
        written += tl.sum(kept.to(tl.int32), axis=1)


def tile_topk(x: Tensor, values: Tensor, places: Tensor, size: int) -> None:
    """As the operation."""
    count = x.numel() // size
    span = min(triton.next_power_of_2(size), BLOCK)
    rows = BLOCK // span
    sizes = count, size, values.numel() // max(count, 1)
    launch(_kernel, (triton.cdiv(count, rows),), x, values, places, *sizes, ROWS=rows, SPAN=span)
