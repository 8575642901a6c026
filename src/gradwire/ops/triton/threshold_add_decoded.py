"""The sum of what exceeded a threshold on each rank.

A row says on the device what its form is. So the kernels of all forms are started, and those of the others leave.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops._threshold import BITMAP, BLOCK, DENSE
from gradwire.ops._topk import segments
from gradwire.ops.triton._compact import PART, before, bits_of, rank, read_ends
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._sparse import BLOCK as STEP
from gradwire.ops.triton._sparse import PARTS, span
from gradwire.ops.triton._tile import elements

__all__ = ["threshold_add_decoded"]

_DENSE, _BITMAP, _BLOCK = tl.constexpr(DENSE), tl.constexpr(BITMAP), tl.constexpr(BLOCK)
_HEAD = tl.constexpr(8)


@triton.jit
def _word(row: tl.tensor, byte: tl.tensor, length: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """The int32 from each byte on, wherever it lies; bytes beyond the row are 0."""
    word = tl.load(row + byte, mask=mask & (byte < length), other=0).to(tl.int32)
    for part in tl.static_range(1, 4):
        at = byte + part
        word |= tl.load(row + at, mask=mask & (at < length), other=0).to(tl.int32) << (8 * part)
    return word


@triton.jit
def _float(row: tl.tensor, j: tl.tensor, length: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Value j of a row."""
    return _word(row, _HEAD + 4 * j, length, mask).to(tl.float32, bitcast=True)


@triton.jit
def _bits(row: tl.tensor, k: tl.tensor, length: tl.tensor, n: tl.tensor, PART: tl.constexpr) -> tl.tensor:
    """Which elements of this part the bitmap behind k values names."""
    start = _HEAD + 4 * k
    return bits_of(row + start, length - start, n, PART)


@triton.jit
def _head(row: tl.tensor, head: tl.tensor, length: tl.tensor, n: tl.tensor) -> None:
    """The form, and the values there are: none if there cannot be as many."""
    at = tl.arange(0, 1)
    form, k = _word(row, at, length, at == 0), _word(row, at + 4, length, at == 0)
    tl.store(head + at, form)
    tl.store(head + 1 + at, tl.where((k >= 0) & (k <= n), k, 0))


@triton.jit
def _count(
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
    there = (segment < segments) & (tl.load(head) == _BLOCK)
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
    """As the operation; where a row names an element twice, which no encoder does, only one may be added."""
    for row in streams:
        _add_row(row, out, float32(scale))


def _add_row(row: Tensor, out: Tensor, scale: float) -> None:
    n, length, count = out.numel(), row.numel(), segments(out.numel())
    parts = triton.cdiv(n, PART)
    head = torch.empty(2, dtype=torch.int32, device=out.device)
    named = torch.empty(parts, dtype=torch.int32, device=out.device)
    counts = torch.empty(count, dtype=torch.int32, device=out.device)
    launch(_head, (1,), row, head, length, n)
    launch(_count, (parts,), row, head, named, length, n, PART=PART)
    launch(_add_parts, (parts,), out, row, head, before(named), length, n, scale, PART=PART)
    launch(_read_counts, (triton.cdiv(count, STEP),), row, head, counts, length, count, STEP=STEP)
    ends = read_ends(counts, head[1])
    launch(_add_segments, (count, PARTS), out, row, head, ends, length, n, count, scale, PARTS=PARTS, STEP=STEP)
