"""Indices as a bitmap on a GPU; their form as gaps is left to the reference."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.triton.compact import PART, before, bits_of, rank, read_ends, write_counts
from gradwire.kernels.triton.kernel_launch import launch
from gradwire.kernels.triton.marks import count_marks
from gradwire.kernels.triton.sparse import BLOCK, PARTS, span
from gradwire.kernels.triton.tile import elements

__all__ = ["bitmap_decode", "bitmap_encode"]


@triton.jit
def _set_bits(words, indices, ends, n, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    segment = tl.program_id(0)
    begin, end = span(ends, segment)
    for start in range(begin + tl.program_id(1) * BLOCK, end, PARTS * BLOCK):
        j = start + tl.arange(0, BLOCK)
        low = tl.load(indices + j, mask=j < end, other=0).to(tl.int32) & 0xFFFF
        place = segment.to(tl.int64) * 65536 + low
        tl.atomic_or(words + place // 32, 1 << (low % 32), mask=(j < end) & (place < n), sem="relaxed")


def bitmap_encode(indices: Tensor, counts: Tensor, bitmap: Tensor, n: int) -> None:
    """The operation on a GPU. The bits are set in whole words, because a bitmap may start at any byte."""
    words = torch.zeros(triton.cdiv(n, 32), dtype=torch.int32, device=bitmap.device)
    ends = read_ends(counts, indices.numel())
    launch(_set_bits, (counts.numel(), PARTS), words, indices, ends, n, PARTS=PARTS, BLOCK=BLOCK)
    bitmap.copy_(words.view(torch.uint8)[: bitmap.numel()])


@triton.jit
def _write_places(bitmap, starts, indices, size, n, k, PART: tl.constexpr):
    bits = bits_of(bitmap, size, n, PART)
    place = tl.load(starts + tl.program_id(0)) + rank(bits)
    tl.store(indices + place, elements(PART).to(tl.int16), mask=bits & (place < k))


def bitmap_decode(bitmap: Tensor, indices: Tensor, counts: Tensor, n: int) -> None:
    named, size, k = count_marks(bitmap, n), bitmap.numel(), indices.numel()
    indices.zero_()
    launch(_write_places, (named.numel(),), bitmap, before(named), indices, size, n, k, PART=PART)
    write_counts(named.cumsum(0).clamp_(max=k), counts)
