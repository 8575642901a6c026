"""Compaction of the kept elements of a tensor: each part is counted, and then writes at its own offset.

A part is the work of one program. Counts are added up on the device, by one program for each tensor; nothing waits for
them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.segments import SEGMENT
from gradwire.kernels.triton.kernel_launch import BLOCK, ScratchMemory, launch
from gradwire.kernels.triton.signs import unpack_signs
from gradwire.kernels.triton.tile import elements

__all__ = ["PART", "before", "bits_of", "place_parts", "rank", "read_ends", "write_counts"]

PART = BLOCK

_PARTS = SEGMENT // PART
_AT_ONCE = 4096
"""Parts that are added up at once: a tensor of 2^28 elements has 32 times as many."""


@triton.jit
def _place_parts(
    larger: tl.tensor,
    equal: tl.tensor,
    ties: tl.tensor,
    starts: tl.tensor,
    equals: tl.tensor,
    counts: tl.tensor,
    parts: tl.tensor,
    SEGMENT_PARTS: tl.constexpr,
    STEP: tl.constexpr,
    program: tl.tensor = None,  # noqa: ARG001
) -> None:
    wanted = tl.load(ties)
    larger_before = tl.zeros((1,), tl.int64)
    equal_before = tl.zeros((1,), tl.int64)
    for first in range(0, parts, STEP):
        part = first + tl.arange(0, STEP)
        inside = part < parts
        more = tl.load(larger + part, mask=inside, other=0).to(tl.int64)
        same = tl.load(equal + part, mask=inside, other=0).to(tl.int64)
        equal_ends = equal_before + tl.cumsum(same, 0)
        start = larger_before + tl.cumsum(more, 0) - more + tl.minimum(equal_ends - same, wanted)
        tl.store(starts + part, start, mask=inside)
        tl.store(equals + part, equal_ends - same, mask=inside)
        kept = more + tl.minimum(equal_ends, wanted) - tl.minimum(equal_ends - same, wanted)
        segment = first // SEGMENT_PARTS + tl.arange(0, STEP // SEGMENT_PARTS)
        in_segment = tl.sum(tl.reshape(kept, (STEP // SEGMENT_PARTS, SEGMENT_PARTS)), axis=1)
        tl.store(counts + segment, in_segment.to(tl.int32), mask=segment * SEGMENT_PARTS < parts)
        larger_before += tl.sum(more, axis=0)
        equal_before += tl.sum(same, axis=0)


def place_parts(
    larger: Tensor | ScratchMemory,
    equal: Tensor | ScratchMemory,
    ties: Tensor | ScratchMemory,
    starts: Tensor | ScratchMemory,
    equals: Tensor | ScratchMemory,
    counts: Tensor,
    parts: int,
) -> None:
    """Find where each part writes its elements: all that are larger, and of the equal ones the first of the tensor.

    Args:
        larger: int32, one for each part.
        equal: int32, one for each part.
        ties: int64, one: how many of the equal ones are kept.
        starts: int64, one for each part: receives how many are kept in the parts before it.
        equals: int64, one for each part: receives how many equal ones, kept or not, the parts before it have.
        counts: int32, one for each segment: receives how many are kept there.
        parts: number of parts of the tensor.
    """
    found = larger, equal, ties, starts, equals, counts
    launch(_place_parts, (1,), *found, parts, SEGMENT_PARTS=_PARTS, STEP=_AT_ONCE)


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
def rank(kept: tl.tensor, AXIS: tl.constexpr = 0) -> tl.tensor:
    """The number of kept elements in front of each, within this part."""
    one = kept.to(tl.int32)
    return tl.cumsum(one, AXIS) - one


@triton.jit
def bits_of(data: tl.tensor, size: tl.tensor, n: tl.tensor, PART: tl.constexpr) -> tl.tensor:
    """Read the bits of this part's elements from a bitmap of ``size`` bytes; missing bits are 0."""
    byte = tl.program_id(0).to(tl.int64) * (PART // 8) + tl.arange(0, PART // 8)
    bits = unpack_signs(tl.load(data + byte, mask=byte < size, other=0))
    return tl.reshape(bits, (PART,)) & (elements(PART) < n)
