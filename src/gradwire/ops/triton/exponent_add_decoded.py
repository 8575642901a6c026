"""The sum of signed powers of two where bitmaps say so."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._compact import PART, before, bits_of, rank
from gradwire.ops.triton._exponents import value_of
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._tile import elements

__all__ = ["exponent_add_decoded"]


@triton.jit
def _size(used: tl.tensor, length: tl.tensor) -> tl.tensor:
    """The bytes there are in a row, whatever it says."""
    return tl.minimum(tl.maximum(tl.load(used), 0), length)


@triton.jit
def _count(
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
def _add(
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
        total = tl.where(there, total + value_of(code, tl.load(tops)) * scale, total)
        streams += stride
        used += used_stride
        tops += top_stride
        starts += tl.num_programs(0)
    tl.store(out + i, total, mask=i < n)


def exponent_add_decoded(streams: Tensor, used: Tensor, tops: Tensor, out: Tensor, scale: float) -> None:
    """As the operation."""
    (ranks, length), n = streams.shape, out.numel()
    parts = triton.cdiv(n, PART)
    named = torch.empty(ranks, parts, dtype=torch.int32, device=out.device)
    rows = streams, streams.stride(0), used, used.stride(0)
    launch(_count, (parts, ranks), *rows, named, length, n, PART=PART)
    heads = tops, tops.stride(0), before(named), ranks
    launch(_add, (parts,), *rows, *heads, out, length, triton.cdiv(n, 8), n, float32(scale), PART=PART)
