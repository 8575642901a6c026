"""Operations on some of the elements on a GPU, as ``ops`` defines them.

How many elements exceed a threshold, and so the form of their stream and where its parts lie, is known on the device
only: kernels read it from ``head``, int64: form, values written, elements sent, bytes in use. A row that is read says
on the device what its form is: the kernels of all forms are started, and those of the others leave.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.compressors.sparse._draws import HEADER
from gradwire.compressors.sparse._exponents import INFINITE
from gradwire.compressors.sparse.ops import BITMAP, DENSE, TAIL_SEGMENT
from gradwire.compressors.sparse.ops import BLOCK as PLACES
from gradwire.ops.bits import unpack_bits
from gradwire.ops.segments import SEGMENT, segments
from gradwire.ops.triton.accumulate import add_residual
from gradwire.ops.triton.compact import PART, before, bits_of, rank, read_ends, write_counts
from gradwire.ops.triton.dither import dither
from gradwire.ops.triton.largest import magnitudes, write_largest
from gradwire.ops.triton.launch import BLOCK, launch, scratch
from gradwire.ops.triton.many import mergeable
from gradwire.ops.triton.marks import count_marks, room_for_counts
from gradwire.ops.triton.philox import philox_table, philox_words
from gradwire.ops.triton.signs import ROWS, blocks, pack_signs, total_of_16
from gradwire.ops.triton.sparse import BLOCK as STEP
from gradwire.ops.triton.sparse import PARTS, span
from gradwire.ops.triton.status import compensate
from gradwire.ops.triton.tile import elements, number
from gradwire.ops.validation import float32

__all__ = [
    "exponent_add_decoded",
    "exponent_encode",
    "mark_beyond",
    "mark_drawn",
    "parts_add_decoded",
    "randomk_add_decoded",
    "randomk_encode",
    "sparse_add_decoded",
    "tail_moments",
    "take_beyond",
    "take_drawn",
    "take_marked",
    "threshold_add_decoded",
    "threshold_encode",
    "threshold_encode_feedback",
    "tile_topk",
    "topk_encode",
    "topk_encode_feedback",
]

Parts = Sequence[Tensor]

_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_INFINITE = tl.constexpr(INFINITE)
_UNIT = tl.constexpr(2.0**-32)
_LANES = tl.constexpr(16)
_DENSE, _BITMAP, _BLOCK = tl.constexpr(DENSE), tl.constexpr(BITMAP), tl.constexpr(PLACES)
_SEGMENT_PARTS = tl.constexpr(SEGMENT // PART)
_HEAD = tl.constexpr(8)
_HEADER = tl.constexpr(HEADER)
_MIDDLE = tl.constexpr(12582912.0)


@mergeable
def topk_encode(x: Tensor, values: Tensor, indices: Tensor, counts: Tensor) -> None:
    """The operation on a GPU."""
    write_largest(x, values, indices, counts, clear=False)


@mergeable
def topk_encode_feedback(
    grad: Tensor, residual: Tensor, values: Tensor, indices: Tensor, counts: Tensor, status: Tensor | None = None
) -> None:
    """The operation on a GPU."""
    add_residual(grad, residual, status)
    write_largest(residual, values, indices, counts, clear=True)


@triton.jit
def _magnitudes_in(x: tl.tensor, tile: tl.tensor, column: tl.tensor, count: tl.tensor, size: tl.tensor) -> tl.tensor:
    """The magnitudes in these columns of each tile as the integers of their bits; -1 beyond the tile."""
    inside = (tile < count)[:, None] & (column < size)[None, :]
    bits = tl.load(x + tile[:, None] * size + column[None, :], mask=inside, other=0.0).to(tl.int32, bitcast=True)
    return tl.where(inside, bits & _MAGNITUDE, -1)


@triton.jit
def _at_least(
    x: tl.tensor,
    tile: tl.tensor,
    limit: tl.tensor,
    count: tl.tensor,
    size: tl.tensor,
    ROWS: tl.constexpr,
    SPAN: tl.constexpr,
) -> tl.tensor:
    """Count the magnitudes of each tile that are at least its limit."""
    found = tl.zeros((ROWS,), tl.int32)
    for start in range(0, size, SPAN):
        magnitude = _magnitudes_in(x, tile, start + tl.arange(0, SPAN), count, size)
        found += tl.sum((magnitude >= limit[:, None]).to(tl.int32), axis=1)
    return found


@triton.jit
def _largest_of_tiles(
    x: tl.tensor,
    values: tl.tensor,
    places: tl.tensor,
    count: tl.tensor,
    size: tl.tensor,
    k: tl.tensor,
    ROWS: tl.constexpr,
    SPAN: tl.constexpr,
    program: tl.tensor = None,
) -> None:
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


@mergeable
def tile_topk(x: Tensor, values: Tensor, places: Tensor, size: int) -> None:
    """The operation on a GPU."""
    count = x.numel() // size
    columns = min(triton.next_power_of_2(size), BLOCK)
    rows = BLOCK // columns
    sizes = count, size, values.numel() // max(count, 1)
    launch(_largest_of_tiles, (triton.cdiv(count, rows),), x, values, places, *sizes, ROWS=rows, SPAN=columns)


@triton.jit
def _find_ends(
    counts: tl.tensor,
    stride: tl.tensor,
    ends: tl.tensor,
    segments: tl.tensor,
    k: tl.tensor,
    STEP: tl.constexpr,
    program: tl.tensor = None,  # noqa: ARG001
) -> None:
    """The number of the k values up to the end of each segment: a negative count is 0, and there are at most k."""
    rank = tl.program_id(1).to(tl.int64)
    before = tl.zeros((1,), tl.int64)
    for first in range(0, segments, STEP):
        segment = first + tl.arange(0, STEP)
        count = tl.load(counts + rank * stride + segment, mask=segment < segments, other=0).to(tl.int64)
        count = tl.maximum(count, 0)
        tl.store(ends + rank * segments + segment, tl.minimum(before + tl.cumsum(count, 0), k), mask=segment < segments)
        before += tl.sum(count, axis=0)


@triton.jit(do_not_specialize=["row"])
def _add_entries(
    out: tl.tensor,
    values: tl.tensor,
    indices: tl.tensor,
    ends: tl.tensor,
    row: tl.int32,
    segments: tl.tensor,
    n: tl.tensor,
    scale: tl.float32,
    PARTS: tl.constexpr,
    STEP: tl.constexpr,
    program: tl.tensor = None,
) -> None:
    segment = number(program)
    begin, end = span(ends + row * segments, segment)
    for start in range(begin + tl.program_id(1) * STEP, end, PARTS * STEP):
        j = start + tl.arange(0, STEP)
        low = tl.load(indices + j, mask=j < end, other=0).to(tl.int32) & 0xFFFF
        place = segment * 65536 + low
        inside = (j < end) & (place < n)
        scaled = tl.load(values + j, mask=inside) * scale
        tl.store(out + place, tl.load(out + place, mask=inside) + scaled, mask=inside)


@mergeable
def sparse_add_decoded(values: Tensor, indices: Tensor, counts: Tensor, out: Tensor, scale: float) -> None:
    """The operation on a GPU; if a rank names an element twice, which no encoder does, only one value may be added.

    One launch for each rank keeps their order. Atomic additions would not do: a GPU flushes subnormals in them.
    """
    ranks, count = counts.shape
    ends = scratch(ranks * count, torch.int64, out)
    launch(_find_ends, (1, ranks), counts, counts.stride(0), ends, count, values.size(1), STEP=BLOCK)
    n, form = out.numel(), {"PARTS": PARTS, "STEP": STEP}
    for row, (value, index) in enumerate(zip(values, indices, strict=True)):
        launch(_add_entries, (count, PARTS), out, value, index, ends, row, count, n, float32(scale), **form)


def parts_add_decoded(values: Parts, indices: Parts, counts: Parts, levels: Parts, out: Tensor, scale: float) -> None:
    """The operation on a GPU; of two entries of a part for one element, which no encoder makes, only one is added."""
    for value, index, count, level in zip(values, indices, counts, levels, strict=True):
        if level.numel():
            value = torch.where(unpack_bits(value, index.numel()), level[1], level[0])
        torch.ops.gradwire.sparse_add_decoded(value[None], index[None], count[None], out, scale)


@triton.jit
def _store_marks(marked: tl.tensor, bitmap: tl.tensor, named: tl.tensor, n: tl.tensor, PART: tl.constexpr) -> None:
    """Write the bits of this part, and the number of set ones."""
    byte = tl.program_id(0).to(tl.int64) * (PART // 8) + tl.arange(0, PART // 8)
    tl.store(bitmap + byte, pack_signs(tl.reshape(marked, (PART // 8, 8))), mask=byte * 8 < n)
    tl.store(named + tl.program_id(0), tl.sum(marked.to(tl.int32)))


@triton.jit
def _mark_beyond(
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
    _store_marks((i < n) & ~between, bitmap, named, n, PART)


def mark_beyond(x: Tensor, bitmap: Tensor, counts: Tensor, high: float, low: float) -> None:
    """The operation on a GPU."""
    n = x.numel()
    named = room_for_counts(x, n)
    launch(_mark_beyond, (named.numel(),), x, bitmap, named, n, float32(high), float32(low), PART=PART)
    write_counts(named.cumsum(0), counts)


@triton.jit
def _uniform(key: tl.tensor, step: tl.tensor, PART: tl.constexpr) -> tl.tensor:
    """The 32 bits of each element of this part, as the middles of 2**32 parts of (0, 1), in float64."""
    word = tl.reshape(philox_table(elements(PART // 4), key, step), (PART,))
    return ((word ^ 0x80000000).to(tl.float64) + 0.5) * _UNIT


@triton.jit(do_not_specialize=["key", "step"])
def _mark_drawn(
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
    _store_marks(above, whole, whole_named, n, PART)
    _store_marks(drawn & ~above, bitmap, named, n, PART)


def mark_drawn(
    x: Tensor, bitmap: Tensor, counts: Tensor, whole: Tensor, whole_counts: Tensor, s: float, key: int, step: int
) -> None:
    """The operation on a GPU."""
    n = x.numel()
    named, whole_named = room_for_counts(x, n), room_for_counts(x, n)
    outputs = bitmap, named, whole, whole_named
    launch(_mark_drawn, (named.numel(),), x, *outputs, n, float32(s), key, step, PART=PART)
    write_counts(named.cumsum(0), counts)
    write_counts(whole_named.cumsum(0), whole_counts)


@triton.jit
def _take_marked(
    x: tl.tensor,
    bitmap: tl.tensor,
    starts: tl.tensor,
    values: tl.tensor,
    indices: tl.tensor,
    size: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    PART: tl.constexpr,
) -> None:
    i, bits = elements(PART), bits_of(bitmap, size, n, PART)
    place = tl.load(starts + tl.program_id(0)) + rank(bits)
    taken = bits & (place < k)
    tl.store(values + place, tl.load(x + i, mask=taken), mask=taken)
    tl.store(indices + place, i.to(tl.int16), mask=taken)


def take_marked(x: Tensor, bitmap: Tensor, counts: Tensor, values: Tensor, indices: Tensor) -> None:  # noqa: ARG001
    """The operation on a GPU. Counts are of whole segments; those of parts are computed again from the bits."""
    named, n = count_marks(bitmap, x.numel()), x.numel()
    sizes = bitmap.numel(), n, values.numel()
    launch(_take_marked, (named.numel(),), x, bitmap, before(named), values, indices, *sizes, PART=PART)


def take_beyond(x: Tensor, counts: Tensor, values: Tensor, indices: Tensor, high: float, low: float) -> None:
    """The operation on a GPU."""
    bitmap = torch.empty(-(-x.numel() // 8), dtype=torch.uint8, device=x.device)
    torch.ops.gradwire.mark_beyond(x, bitmap, counts, high, low)
    torch.ops.gradwire.take_marked(x, bitmap, counts, values, indices)


def take_drawn(
    x: Tensor,
    whole_counts: Tensor,
    whole_values: Tensor,
    whole_indices: Tensor,
    counts: Tensor,
    values: Tensor,
    indices: Tensor,
    s: float,
    key: int,
    step: int,
) -> None:
    """The operation on a GPU."""
    bitmap, whole = torch.empty(2, -(-x.numel() // 8), dtype=torch.uint8, device=x.device)
    torch.ops.gradwire.mark_drawn(x, bitmap, counts, whole, whole_counts, s, key, step)
    torch.ops.gradwire.take_marked(x, whole, whole_counts, whole_values, whole_indices)
    torch.ops.gradwire.take_marked(x, bitmap, counts, values, indices)


@triton.jit
def _measure_tails(
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
    """The operation on a GPU."""
    n, count = x.numel(), table.numel() // 4
    limits = float32(low), float32(high), float32(unit)
    launch(_measure_tails, (triton.cdiv(count, ROWS),), x, table, n, count, *limits, SIZE=TAIL_SEGMENT, ROWS=ROWS)


@triton.jit
def _code_of(x: tl.tensor, top: tl.tensor) -> tl.tensor:
    """Compute ``top`` minus the exponents of |x|, rounded to a power of two, plus 8 if x < 0."""
    bits = x.to(tl.int32, bitcast=True) & _MAGNITUDE
    finite = tl.minimum((bits + 0x400000) >> 23, _INFINITE - 1)
    exponent = tl.where(bits >= _INFINITE << 23, _INFINITE, finite)
    return ((top - exponent) | tl.where(x < 0.0, 8, 0)) & 15


@triton.jit
def _value_of(code: tl.tensor, top: tl.tensor) -> tl.tensor:
    """Decode codes; ``top`` is taken as one in 0 to 255."""
    exponent = tl.maximum(tl.maximum(top, 0) - (code & 7), 0)
    value = ((exponent << 23) | ((code & 8) << 28)).to(tl.float32, bitcast=True)
    return tl.where(top >= _INFINITE, float("nan"), value)


@triton.jit(do_not_specialize=["top"])
def _write_codes(
    x: tl.tensor,
    bitmap: tl.tensor,
    starts: tl.tensor,
    words: tl.tensor,
    size: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    top: tl.int32,
    PART: tl.constexpr,
) -> None:
    bits = bits_of(bitmap, size, n, PART)
    place = tl.load(starts + tl.program_id(0)) + rank(bits)
    code = _code_of(tl.load(x + elements(PART), mask=bits, other=0.0), top)
    shift = (place % 8 * 4).to(tl.int32)
    tl.atomic_or(words + place // 8, code << shift, mask=bits & (place < k), sem="relaxed")


def exponent_encode(x: Tensor, bitmap: Tensor, counts: Tensor, codes: Tensor, top: int) -> None:  # noqa: ARG001
    """The operation on a GPU. Two parts may share a byte: codes are set in whole words by atomic operations."""
    named, size, n = count_marks(bitmap, x.numel()), codes.numel(), x.numel()
    words = torch.zeros(triton.cdiv(size, 4), dtype=torch.int32, device=x.device)
    sizes = bitmap.numel(), n, 2 * size
    launch(_write_codes, (named.numel(),), x, bitmap, before(named), words, *sizes, top, PART=PART)
    codes.copy_(words.view(torch.uint8)[:size])


@triton.jit
def _size(used: tl.tensor, length: tl.tensor) -> tl.tensor:
    """The number of bytes in a row, limited to its length."""
    return tl.minimum(tl.maximum(tl.load(used), 0), length)


@triton.jit
def _count_codes(
    streams: tl.tensor,
    stride: tl.tensor,
    used: tl.tensor,
    used_stride: tl.tensor,
    named: tl.tensor,
    length: tl.tensor,
    n: tl.tensor,
    PART: tl.constexpr,
) -> None:
    row = tl.program_id(1).to(tl.int64)
    bits = bits_of(streams + row * stride, _size(used + row * used_stride, length), n, PART)
    tl.store(named + row * tl.num_programs(0) + tl.program_id(0), tl.sum(bits.to(tl.int32)))


@triton.jit
def _add_codes(
    streams: tl.tensor,
    stride: tl.tensor,
    used: tl.tensor,
    used_stride: tl.tensor,
    tops: tl.tensor,
    top_stride: tl.tensor,
    starts: tl.tensor,
    ranks: tl.tensor,
    out: tl.tensor,
    length: tl.tensor,
    middle: tl.tensor,
    n: tl.tensor,
    scale: tl.float32,
    PART: tl.constexpr,
) -> None:
    i = elements(PART)
    total = tl.load(out + i, mask=i < n, other=0.0)
    for _ in range(ranks):
        size = _size(used, length)
        bits = bits_of(streams, size, n, PART)
        place = tl.load(starts + tl.program_id(0)) + rank(bits)
        byte = middle + place // 2
        there = bits & (byte < size)
        pair = tl.load(streams + byte, mask=there, other=0).to(tl.int32)
        code = (pair >> (place % 2 * 4).to(tl.int32)) & 15
        total = tl.where(there, total + _value_of(code, tl.load(tops)) * scale, total)
        streams += stride
        used += used_stride
        tops += top_stride
        starts += tl.num_programs(0)
    tl.store(out + i, total, mask=i < n)


def exponent_add_decoded(streams: Tensor, used: Tensor, tops: Tensor, out: Tensor, scale: float) -> None:
    """The operation on a GPU."""
    (ranks, length), n = streams.shape, out.numel()
    parts = triton.cdiv(n, PART)
    named = torch.empty(ranks, parts, dtype=torch.int32, device=out.device)
    rows = streams, streams.stride(0), used, used.stride(0)
    launch(_count_codes, (parts, ranks), *rows, named, length, n, PART=PART)
    heads = tops, tops.stride(0), before(named), ranks
    launch(_add_codes, (parts,), *rows, *heads, out, length, triton.cdiv(n, 8), n, float32(scale), PART=PART)


@triton.jit
def _exceeds(x: tl.tensor, threshold: tl.tensor, level: tl.tensor, i: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """A mask of the elements with |x| above the threshold, or at or above their part of a given level, or NaN in
    either.
    """
    below = tl.abs(x) <= threshold if level is None else tl.abs(x) < tl.load(level) * dither(i)
    return inside & ~below


@triton.jit
def _count_exceeding(
    x: tl.tensor,
    grad: tl.tensor,
    status: tl.tensor,
    sent: tl.tensor,
    level: tl.tensor,
    n: tl.tensor,
    threshold: tl.float32,
    PART: tl.constexpr,
) -> None:
    i = elements(PART)
    if grad is not None:
        value = compensate(grad, x, status, i, n)
        tl.store(x + i, value, mask=i < n)
    else:
        value = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(sent + tl.program_id(0), tl.sum(_exceeds(value, threshold, level, i, i < n).to(tl.int32)))


@triton.jit
def _write_sent(
    x: tl.tensor,
    floats: tl.tensor,
    words: tl.tensor,
    halves: tl.tensor,
    data: tl.tensor,
    head: tl.tensor,
    starts: tl.tensor,
    counts: tl.tensor,
    level: tl.tensor,
    n: tl.tensor,
    segments: tl.tensor,
    threshold: tl.float32,
    CLEAR: tl.constexpr,
    PART: tl.constexpr,
) -> None:
    i, part = elements(PART), tl.program_id(0)
    form, k = tl.load(head), tl.load(head + 2)
    value = tl.load(x + i, mask=i < n, other=0.0)
    sent = _exceeds(value, threshold, level, i, i < n)
    place = tl.load(starts + part) + rank(sent)
    tl.store(floats + 2 + tl.where(form == _DENSE, i, place), value, mask=sent)
    if form == _BITMAP:
        byte = part.to(tl.int64) * (PART // 8) + tl.arange(0, PART // 8)
        tl.store(data + _HEAD + 4 * k + byte, pack_signs(tl.reshape(sent, (PART // 8, 8))), mask=byte * 8 < n)
    if form == _BLOCK:
        tl.store(halves + 4 + 2 * k + 2 * segments + place, i.to(tl.int16), mask=sent)
        if part % _SEGMENT_PARTS == 0:
            segment = part // _SEGMENT_PARTS
            tl.store(words + 2 + k + segment, tl.load(counts + segment))
    if CLEAR:
        tl.store(x + i, tl.zeros((PART,), tl.float32), mask=sent)


def _write_exceeding(
    x: Tensor,
    used: Tensor,
    stream: Tensor,
    threshold: float,
    level: Tensor | None,
    grad: Tensor | None = None,
    status: Tensor | None = None,
) -> None:
    """Write the elements above the threshold. With ``grad``, x is the residual and becomes the sum
    minus what was sent.
    """
    n, count = x.numel(), segments(x.numel())
    parts = triton.cdiv(n, PART)
    sent = torch.empty(parts, dtype=torch.int32, device=x.device)
    launch(_count_exceeding, (parts,), x, grad, status, sent, level, n, threshold, PART=PART)
    head = _head_of(sent.sum(dtype=torch.int64), n)
    counts = torch.empty(count, dtype=torch.int32, device=x.device)
    write_counts(sent.cumsum(0), counts)
    used.copy_(head[3:])
    stream.zero_()
    words = stream.view(torch.int32)
    words[:2].copy_(head[:2])
    views = words.view(torch.float32), words, stream.view(torch.int16), stream
    starts, clear = before(sent), grad is not None
    launch(_write_sent, (parts,), x, *views, head, starts, counts, level, n, count, threshold, CLEAR=clear, PART=PART)


def _head_of(k: Tensor, n: int) -> Tensor:
    dense, bitmap, block = torch.full_like(k, 4 * n), 4 * k + -(-n // 8), 6 * k + 4 * segments(n)
    sparse = torch.where(bitmap <= block, BITMAP, PLACES)
    size = torch.minimum(bitmap, block)
    form = torch.where(dense <= size, DENSE, sparse)
    written = torch.where(dense <= size, n, k)
    return torch.stack((form, written, k, 8 + torch.minimum(dense, size)))


def threshold_encode(x: Tensor, used: Tensor, stream: Tensor, threshold: float, level: Tensor | None = None) -> None:
    """The operation on a GPU."""
    _write_exceeding(x, used, stream, float32(threshold), level)


def threshold_encode_feedback(
    grad: Tensor,
    residual: Tensor,
    used: Tensor,
    stream: Tensor,
    threshold: float,
    status: Tensor | None = None,
    level: Tensor | None = None,
) -> None:
    """The operation on a GPU."""
    _write_exceeding(residual, used, stream, float32(threshold), level, grad, status)


@triton.jit
def _word(row: tl.tensor, byte: tl.tensor, length: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """The int32 that begins at each byte, aligned or not; bytes beyond the row are 0."""
    word = tl.load(row + byte, mask=mask & (byte < length), other=0).to(tl.int32)
    for part in tl.static_range(1, 4):
        at = byte + part
        word |= tl.load(row + at, mask=mask & (at < length), other=0).to(tl.int32) << (8 * part)
    return word


@triton.jit
def _float(row: tl.tensor, j: tl.tensor, length: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Read value j of a row."""
    return _word(row, _HEAD + 4 * j, length, mask).to(tl.float32, bitcast=True)


@triton.jit
def _bits(row: tl.tensor, k: tl.tensor, length: tl.tensor, n: tl.tensor, PART: tl.constexpr) -> tl.tensor:
    """A mask of the elements of this part that the bitmap behind k values names."""
    start = _HEAD + 4 * k
    return bits_of(row + start, length - start, n, PART)


@triton.jit
def _read_head(row: tl.tensor, head: tl.tensor, length: tl.tensor, n: tl.tensor) -> None:
    """Read the form and the number of values: 0 if there cannot be as many."""
    at = tl.arange(0, 1)
    form, k = _word(row, at, length, at == 0), _word(row, at + 4, length, at == 0)
    tl.store(head + at, form)
    tl.store(head + 1 + at, tl.where((k >= 0) & (k <= n), k, 0))


@triton.jit
def _count_named(
    row: tl.tensor, head: tl.tensor, named: tl.tensor, length: tl.tensor, n: tl.tensor, PART: tl.constexpr
) -> None:
    total = 0
    if tl.load(head) == _BITMAP:
        bits = _bits(row, tl.load(head + 1).to(tl.int64), length, n, PART)
        total = tl.sum(bits.to(tl.int32))
    tl.store(named + tl.program_id(0), total)


@triton.jit
def _add_parts(
    out: tl.tensor,
    row: tl.tensor,
    head: tl.tensor,
    starts: tl.tensor,
    length: tl.tensor,
    n: tl.tensor,
    scale: tl.float32,
    PART: tl.constexpr,
) -> None:
    i, form, k = elements(PART), tl.load(head), tl.load(head + 1).to(tl.int64)
    if form == _DENSE:
        inside = i < k
        scaled = _float(row, i, length, inside) * scale
        tl.store(out + i, tl.load(out + i, mask=inside) + scaled, mask=inside)
    if form == _BITMAP:
        bits = _bits(row, k, length, n, PART)
        j = tl.load(starts + tl.program_id(0)) + rank(bits)
        inside = bits & (j < k)
        scaled = _float(row, j, length, inside) * scale
        tl.store(out + i, tl.load(out + i, mask=inside) + scaled, mask=inside)


@triton.jit
def _read_counts(
    row: tl.tensor, head: tl.tensor, counts: tl.tensor, length: tl.tensor, segments: tl.tensor, STEP: tl.constexpr
) -> None:
    segment = elements(STEP)
    there = segment < tl.where(tl.load(head) == _BLOCK, segments, 0)
    at = _HEAD + 4 * (tl.load(head + 1).to(tl.int64) + segment)
    tl.store(counts + segment, _word(row, at, length, there), mask=segment < segments)


@triton.jit
def _add_segments(
    out: tl.tensor,
    row: tl.tensor,
    head: tl.tensor,
    ends: tl.tensor,
    length: tl.tensor,
    n: tl.tensor,
    segments: tl.tensor,
    scale: tl.float32,
    PARTS: tl.constexpr,
    STEP: tl.constexpr,
) -> None:
    segment, k = tl.program_id(0), tl.load(head + 1).to(tl.int64)
    begin, end = span(ends, segment)
    for start in range(begin + tl.program_id(1) * STEP, end, PARTS * STEP):
        j = start + tl.arange(0, STEP)
        low = _word(row, _HEAD + 4 * k + 4 * segments + 2 * j, length, j < end) & 0xFFFF
        place = segment.to(tl.int64) * 65536 + low
        inside = (j < end) & (place < n)
        scaled = _float(row, j, length, inside) * scale
        tl.store(out + place, tl.load(out + place, mask=inside) + scaled, mask=inside)


def threshold_add_decoded(streams: Tensor, out: Tensor, scale: float) -> None:
    """The operation on a GPU; if a row names an element twice, which no encoder does, only one value may be added."""
    for row in streams:
        _add_row(row, out, float32(scale))


def _add_row(row: Tensor, out: Tensor, scale: float) -> None:
    n, length, count = out.numel(), row.numel(), segments(out.numel())
    parts = triton.cdiv(n, PART)
    head = torch.empty(2, dtype=torch.int32, device=out.device)
    named = torch.empty(parts, dtype=torch.int32, device=out.device)
    counts = torch.empty(count, dtype=torch.int32, device=out.device)
    launch(_read_head, (1,), row, head, length, n)
    launch(_count_named, (parts,), row, head, named, length, n, PART=PART)
    launch(_add_parts, (parts,), out, row, head, before(named), length, n, scale, PART=PART)
    launch(_read_counts, (triton.cdiv(count, STEP),), row, head, counts, length, count, STEP=STEP)
    ends = read_ends(counts, head[1])
    launch(_add_segments, (count, PARTS), out, row, head, ends, length, n, count, scale, PARTS=PARTS, STEP=STEP)


@triton.jit
def _chosen(
    stratum: tl.tensor, seed: tl.tensor, units: tl.tensor, k: tl.tensor, run: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """The first element of the chosen unit in each stratum, and the number of units in the stratum, in 64 bits."""
    word0, word1, word2, word3 = philox_words(stratum // 4, seed, 0)
    lane = stratum % 4
    word = tl.where(lane < 2, tl.where(lane == 0, word0, word1), tl.where(lane == 2, word2, word3)).to(tl.int64)
    begin = stratum * units // k
    size = (stratum + 1) * units // k - begin
    return (begin + (word * size >> 32)) * run, size


@triton.jit
def _write_chosen(
    x: tl.tensor,
    values: tl.tensor,
    header: tl.tensor,
    seed: tl.tensor,
    n: tl.tensor,
    count: tl.tensor,
    units: tl.tensor,
    run: tl.tensor,
    scale: tl.float32,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
    program: tl.tensor = None,
) -> None:
    word = tl.load(seed) & 0xFFFFFFFF
    if number(program) == 0:
        slot = tl.arange(0, 8)
        byte = (word >> tl.maximum(slot - 1, 0) * 8) & 0xFF
        tl.store(header + slot, tl.where(slot == 0, 1.0, byte.to(tl.float32)), mask=slot < _HEADER)
    j = elements(BLOCK, program)
    first, size = _chosen(j // run, word, units, count // run, run)
    place = first + j % run
    value = tl.load(x + place, mask=(j < count) & (place < n), other=0.0) * scale
    if SCALED:
        value *= size.to(tl.float32)
    tl.store(values + j, tl.where(place < n, value, 0.0), mask=j < count)


@mergeable
def randomk_encode(
    x: Tensor, values: Tensor, header: Tensor, seed: Tensor, run: int, scaled: bool, scale: float
) -> None:
    """The operation on a GPU; the first program writes the header."""
    n, count = x.numel(), values.numel()
    grid, form = (max(1, triton.cdiv(count, BLOCK)),), {"SCALED": scaled, "BLOCK": BLOCK}
    launch(_write_chosen, grid, x, values, header, seed, n, count, triton.cdiv(n, run), run, float32(scale), **form)


@triton.jit
def _seed_in(header: tl.tensor) -> tl.tensor:
    """Read the seed, in 64 bits; an invalid header gives an arbitrary one."""
    slot = tl.arange(0, 4)
    value = tl.div_rn(tl.load(header + 1 + slot), tl.load(header + slot * 0))
    usable = tl.abs(value) < float("inf")
    # At 2**23 and a half the last bit of a float32 is 1, so adding rounds to an integer.
    byte = (tl.minimum(tl.maximum(tl.where(usable, value, 0.0), 0.0), 255.0) + _MIDDLE) - _MIDDLE
    return tl.sum(byte.to(tl.int64) << slot.to(tl.int64) * 8, axis=0)


@triton.jit
def _add_chosen(
    out: tl.tensor,
    values: tl.tensor,
    header: tl.tensor,
    n: tl.tensor,
    count: tl.tensor,
    units: tl.tensor,
    run: tl.tensor,
    scale: tl.float32,
    BLOCK: tl.constexpr,
    program: tl.tensor = None,
) -> None:
    j = elements(BLOCK, program)
    first, _ = _chosen(j // run, _seed_in(header), units, count // run, run)
    place = first + j % run
    inside = (j < count) & (place < n)
    scaled = tl.load(values + j, mask=inside) * scale
    tl.store(out + place, tl.load(out + place, mask=inside) + scaled, mask=inside)


@mergeable
def randomk_add_decoded(values: Tensor, header: Tensor, out: Tensor, run: int, scale: float) -> None:
    """The operation on a GPU: the values of one rank never meet, and a launch for each rank keeps the order of the
    ranks.
    """
    n, count = out.numel(), values.size(1)
    grid, sizes = (triton.cdiv(count, BLOCK),), (n, count, triton.cdiv(n, run), run)
    for row, head in zip(values, header, strict=True):
        launch(_add_chosen, grid, out, row, head, *sizes, float32(scale), BLOCK=BLOCK)
