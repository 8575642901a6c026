"""Compaction of the kept elements of a tensor: each part is counted, and then writes at its own offset.

A part is the work of one program. Counts are added up on the device, by one program for each tensor; nothing waits for
them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.segments import SEGMENT
from gradwire.kernels.triton.kernel_launch import BLOCK
from gradwire.kernels.triton.signs import unpack_signs
from gradwire.kernels.triton.tile import elements

__all__ = ["PART", "before", "bits_of", "rank", "read_ends", "write_counts"]

PART = BLOCK

_PARTS = SEGMENT // PART


def before(counts: Tensor) -> Tensor:
    """The number of elements in all parts before each, as int64, row by row."""
    return counts.cumsum(-1) - counts


def write_counts(ends: Tensor, counts: Tensor) -> None:
    """Write the number of kept elements in each segment.

    Args:
        ends: int64: how many were kept up to the end of each part.
        counts: int32, one for each segment.
    """
    last = ends[_PARTS - 1 :: _PARTS]
    edges = last if last.numel() == counts.numel() else torch.cat((last, ends[-1:]))
    counts.copy_(edges.diff(prepend=edges.new_zeros(1)))


def read_ends(counts: Tensor, k: int | Tensor) -> Tensor:
    """The number of the k values up to the end of each segment: a negative count is 0, and there are at most k."""
    return counts.long().clamp_(min=0).cumsum(0).clamp_(max=k)


@triton.jit
def rank(kept, AXIS: tl.constexpr = 0):
    """The number of kept elements in front of each, within this part."""
    one = kept.to(tl.int32)
    return tl.cumsum(one, AXIS) - one


@triton.jit
def bits_of(data, size, n, PART: tl.constexpr):
    """Read the bits of this part's elements from a bitmap of ``size`` bytes; missing bits are 0."""
    byte = tl.program_id(0).to(tl.int64) * (PART // 8) + tl.arange(0, PART // 8)
    bits = unpack_signs(tl.load(data + byte, mask=byte < size, other=0))
    return tl.reshape(bits, (PART,)) & (elements(PART) < n)
