"""Operations on some of the elements on a GPU, as ``ops`` defines them."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.bits import unpack_bits
from gradwire.kernels.float32 import float32
from gradwire.kernels.triton.compact import PROGRAMS, STEP, rank
from gradwire.kernels.triton.kernel_launch import BLOCK, launch
from gradwire.kernels.triton.largest import write_largest
from gradwire.kernels.triton.tile import blocks, number

__all__ = [
    "parts_add_decoded",
    "sparse_add_decoded",
    "tile_topk",
    "topk_encode",
    "topk_encode_feedback",
]

Parts = Sequence[Tensor]

_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


def topk_encode(x: Tensor, values: Tensor, indices: Tensor, counts: Tensor) -> None:
    write_largest(x, values, indices, counts)


def topk_encode_feedback(
    grad: Tensor, residual: Tensor, values: Tensor, indices: Tensor, counts: Tensor, status: Tensor | None = None
) -> None:
    write_largest(residual, values, indices, counts, grad, status)


@triton.jit
def _magnitudes_in(x, tile, column, count, size):
    """The magnitudes in these columns of each tile as the integers of their bits; -1 beyond the tile."""
    inside = (tile < count)[:, None] & (column < size)[None, :]
    bits = tl.load(x + tile[:, None] * size + column[None, :], mask=inside, other=0.0).to(tl.int32, bitcast=True)
    return tl.where(inside, bits & _MAGNITUDE, -1)


@triton.jit
def _at_least(x, tile, limit, count, size, ROWS: tl.constexpr, SPAN: tl.constexpr):
    """Count the magnitudes of each tile that are at least its limit."""
    found = tl.zeros((ROWS,), tl.int32)
    for start in range(0, size, SPAN):
        magnitude = _magnitudes_in(x, tile, start + tl.arange(0, SPAN), count, size)
        found += tl.sum((magnitude >= limit[:, None]).to(tl.int32), axis=1)
    return found


@triton.jit
def _largest_of_tiles(x, values, places, count, size, k, ROWS: tl.constexpr, SPAN: tl.constexpr, program=None):
    tile = blocks(ROWS, program)
    least = tl.zeros((ROWS,), tl.int32)
    for bit in range(31):
        higher = least | (1 << (30 - bit))
        least = tl.where(_at_least(x, tile, higher, count, size, ROWS, SPAN) >= k, higher, least)
    # No magnitude is larger than 2**31 - 1, that of a NaN: there the sum wraps to a limit that all would reach.
    larger = tl.where(least == _MAGNITUDE, 0, _at_least(x, tile, least + 1, count, size, ROWS, SPAN))
    ties, written = k - larger, tl.zeros((ROWS,), tl.int32)
    for start in range(0, size, SPAN):
        column = start + tl.arange(0, SPAN)
        magnitude = _magnitudes_in(x, tile, column, count, size)
        equal = magnitude == least[:, None]
        kept = (magnitude > least[:, None]) | (equal & (rank(equal, 1) < ties[:, None]))
        at = tile[:, None] * k + written[:, None] + rank(kept, 1)
        value = tl.load(x + tile[:, None] * size + column[None, :], mask=kept)
        tl.store(values + at, value, mask=kept)
        tl.store(places + at, tl.broadcast_to(column[None, :], (ROWS, SPAN)).to(tl.int16), mask=kept)
        ties -= tl.sum(equal.to(tl.int32), axis=1)
        written += tl.sum(kept.to(tl.int32), axis=1)


def tile_topk(x: Tensor, values: Tensor, places: Tensor, size: int) -> None:
    count = x.numel() // size
    columns = min(triton.next_power_of_2(size), BLOCK)
    rows = BLOCK // columns
    sizes = count, size, values.numel() // max(count, 1)
    launch(_largest_of_tiles, (triton.cdiv(count, rows),), x, values, places, *sizes, ROWS=rows, SPAN=columns)


@triton.jit
def _add_entries(
    out,
    values,
    indices,
    counts,
    k,
    n,
    scale: tl.float32,
    PROGRAMS: tl.constexpr,
    STEP: tl.constexpr,
    AT_ONCE: tl.constexpr,
    program=None,
):
    """Add a segment's values: a negative count is 0, and there are at most k.

    Every program adds up the counts of the segments before its own, which takes less time than another launch.
    """
    segment = number(program)
    begin = tl.zeros((), tl.int64)
    for first in range(0, segment, AT_ONCE):
        other = first + tl.arange(0, AT_ONCE)
        count = tl.load(counts + other, mask=other < segment, other=0).to(tl.int64)
        begin += tl.sum(tl.maximum(count, 0))
    end = tl.minimum(begin + tl.maximum(tl.load(counts + segment).to(tl.int64), 0), k)
    for start in range(begin + tl.program_id(1) * STEP, end, PROGRAMS * STEP):
        j = start + tl.arange(0, STEP)
        low = tl.load(indices + j, mask=j < end, other=0).to(tl.int32) & 0xFFFF
        place = segment * 65536 + low
        inside = (j < end) & (place < n)
        scaled = tl.load(values + j, mask=inside) * scale
        tl.store(out + place, tl.load(out + place, mask=inside) + scaled, mask=inside)


def sparse_add_decoded(values: Tensor, indices: Tensor, counts: Tensor, out: Tensor, scale: float) -> None:
    """The operation on a GPU; if a rank names an element twice, which no encoder does, only one value may be added.

    One launch for each rank keeps their order. Atomic additions would not do: a GPU flushes subnormals in them.
    """
    n, k, form = out.numel(), values.size(1), {"PROGRAMS": PROGRAMS, "STEP": STEP, "AT_ONCE": BLOCK}
    for value, index, count in zip(values, indices, counts, strict=True):
        launch(_add_entries, (count.numel(), PROGRAMS), out, value, index, count, k, n, float32(scale), **form)


def parts_add_decoded(values: Parts, indices: Parts, counts: Parts, levels: Parts, out: Tensor, scale: float) -> None:
    """The operation on a GPU; of two entries of a part for one element, which no encoder makes, only one is added."""
    for value, index, count, level in zip(values, indices, counts, levels, strict=True):
        if level.numel():
            value = torch.where(unpack_bits(value, index.numel()), level[1], level[0])
        sparse_add_decoded(value[None], index[None], count[None], out, scale)
