"""Indices as a bitmap on a GPU; their form as gaps is left to the reference."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.segments import SEGMENT
from gradwire.kernels.triton.compact import PART, PROGRAMS, STEP, rank
from gradwire.kernels.triton.kernel_launch import launch
from gradwire.kernels.triton.signs import unpack_signs
from gradwire.kernels.triton.tile import elements

__all__ = ["bitmap_decode", "bitmap_encode"]

_PARTS = SEGMENT // PART


@triton.jit
def _set_bits(words, indices, ends, n, PROGRAMS: tl.constexpr, STEP: tl.constexpr):
    segment = tl.program_id(0)
    begin, end = tl.load(ends + segment - 1, mask=segment > 0, other=0), tl.load(ends + segment)
    for start in range(begin + tl.program_id(1) * STEP, end, PROGRAMS * STEP):
        j = start + tl.arange(0, STEP)
        low = tl.load(indices + j, mask=j < end, other=0).to(tl.int32) & 0xFFFF
        place = segment.to(tl.int64) * 65536 + low
        tl.atomic_or(words + place // 32, 1 << (low % 32), mask=(j < end) & (place < n), sem="relaxed")


def bitmap_encode(indices: Tensor, counts: Tensor, bitmap: Tensor, n: int) -> None:
    """The operation on a GPU. The bits are set in whole words, because a bitmap may start at any byte."""
    words = torch.zeros(triton.cdiv(n, 32), dtype=torch.int32, device=bitmap.device)
    # A negative count is 0, and there are no more values than indices.
    ends = counts.long().clamp_(min=0).cumsum(0).clamp_(max=indices.numel())
    launch(_set_bits, (counts.numel(), PROGRAMS), words, indices, ends, n, PROGRAMS=PROGRAMS, STEP=STEP)
    bitmap.copy_(words.view(torch.uint8)[: bitmap.numel()])


@triton.jit
def _bits_of(data, size, n, PART: tl.constexpr):
    """Read the bits of this part's elements from a bitmap of ``size`` bytes; missing bits are 0."""
    byte = tl.program_id(0).to(tl.int64) * (PART // 8) + tl.arange(0, PART // 8)
    bits = unpack_signs(tl.load(data + byte, mask=byte < size, other=0))
    return tl.reshape(bits, (PART,)) & (elements(PART) < n)


@triton.jit
def _count_bits(bitmap, named, size, n, PART: tl.constexpr):
    tl.store(named + tl.program_id(0), tl.sum(_bits_of(bitmap, size, n, PART).to(tl.int32)))


@triton.jit
def _write_places(bitmap, starts, indices, size, n, k, PART: tl.constexpr):
    bits = _bits_of(bitmap, size, n, PART)
    place = tl.load(starts + tl.program_id(0)) + rank(bits)
    tl.store(indices + place, elements(PART).to(tl.int16), mask=bits & (place < k))


def bitmap_decode(bitmap: Tensor, indices: Tensor, counts: Tensor, n: int) -> None:
    size, k = bitmap.numel(), indices.numel()
    named = torch.empty(triton.cdiv(n, PART), dtype=torch.int32, device=bitmap.device)
    launch(_count_bits, (named.numel(),), bitmap, named, size, n, PART=PART)
    ends = named.cumsum(0)
    indices.zero_()
    launch(_write_places, (named.numel(),), bitmap, ends - named, indices, size, n, k, PART=PART)
    _write_counts(ends.clamp_(max=k), counts)


def _write_counts(ends: Tensor, counts: Tensor) -> None:
    """Write the number of kept elements in each segment.

    Args:
        ends: int64: how many were kept up to the end of each part.
        counts: int32, one for each segment.
    """
    last = ends[_PARTS - 1 :: _PARTS]
    edges = last if last.numel() == counts.numel() else torch.cat((last, ends[-1:]))
    counts.copy_(edges.diff(prepend=edges.new_zeros(1)))
