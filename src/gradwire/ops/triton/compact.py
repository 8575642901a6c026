"""What is kept of a tensor, one after the other: parts of it are counted, then each knows where its own begin.

A part is the work of one program. Counts are added up by torch, on the device; nothing waits for them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.segments import SEGMENT
from gradwire.ops.triton.launch import BLOCK
from gradwire.ops.triton.signs import unpack_signs
from gradwire.ops.triton.tile import elements

__all__ = ["PART", "before", "bits_of", "rank", "read_ends", "write_counts"]

PART = BLOCK

_PARTS = SEGMENT // PART


def before(counts: Tensor) -> Tensor:
    """How many there are in all parts before each, as int64; rows are on their own."""
    return counts.cumsum(-1) - counts


def write_counts(ends: Tensor, counts: Tensor) -> None:
    """How many were kept in each segment.

    Args:
        ends: int64: how many were kept up to the end of each part.
        counts: int32, one for each segment.
    """
    last = ends[_PARTS - 1 :: _PARTS]
    edges = last if last.numel() == counts.numel() else torch.cat((last, ends[-1:]))
    counts.copy_(edges.diff(prepend=edges.new_zeros(1)))


def read_ends(counts: Tensor, k: int | Tensor) -> Tensor:
    """How many of k values lie up to the end of each segment: a negative count is 0, and there are no more than k."""
    return counts.long().clamp_(min=0).cumsum(0).clamp_(max=k)


@triton.jit
def rank(kept: tl.tensor, AXIS: tl.constexpr = 0) -> tl.tensor:
    """How many are kept in front of each, within this part."""
    one = kept.to(tl.int32)
    return tl.cumsum(one, AXIS) - one


@triton.jit
def bits_of(data: tl.tensor, size: tl.tensor, n: tl.tensor, PART: tl.constexpr) -> tl.tensor:
    """The bits of this part's elements, from a bitmap of ``size`` bytes; those that are missing are 0."""
    byte = tl.program_id(0).to(tl.int64) * (PART // 8) + tl.arange(0, PART // 8)
    bits = unpack_signs(tl.load(data + byte, mask=byte < size, other=0))
    return tl.reshape(bits, (PART,)) & (elements(PART) < n)
