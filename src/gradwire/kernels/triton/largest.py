"""The k largest magnitudes of a tensor on a GPU, written in the order of their places.

Magnitudes are compared as the integers of their bits. Four passes count the digits of those that begin like the k-th
largest; the program that ends last chooses the next digit. The first of these passes also adds the gradient to the
residual, if there is one. Then every part counts what it keeps, the program that ends last adds up what the segments
keep, and every part writes. Only kernels do it, so that the pieces of a message are done in the same launches.

A digit has 8 bits: on an H200 a pass over 2^26 elements takes .25 ms, with 10 bits .88, with 11 bits 1.9, with 6 bits
.22. The time of a histogram grows with its bins, because each lane of a warp has its share of them to count.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.segments import SEGMENT
from gradwire.kernels.triton.compact import PART, rank
from gradwire.kernels.triton.kernel_launch import BLOCK, launch, scratch
from gradwire.kernels.triton.status import compensate
from gradwire.kernels.triton.tile import elements, number

__all__ = ["magnitudes", "write_largest"]

_DIGITS = ((23, 8), (15, 8), (7, 8), (0, 7))  # shift and width of each digit of the 31 bits of a magnitude
_PROGRAMS = 2048  # enough for any GPU; each adds its own histogram to the common one
_PARTS = SEGMENT // PART
_AT_ONCE = 1024  # segments that are added up at once: 2^26 elements

_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def magnitudes(x, i, n):
    """The magnitudes at ``i`` as the integers of their bits, so that a NaN is larger than infinity; -1 from n on."""
    return _magnitude(tl.load(x + i, mask=i < n, other=0.0), i < n)


@triton.jit
def _magnitude(value, inside):
    return tl.where(inside, value.to(tl.int32, bitcast=True) & _MAGNITUDE, -1)


@triton.jit
def _ends_last(ended, programs):
    """Return whether all other programs of the launch have ended, and what they wrote before can be read."""
    # All threads of this program have written before one of them counts it, and none reads before it was counted.
    tl.debug_barrier()
    before = tl.atomic_add(ended, 1, sem="acq_rel")
    tl.debug_barrier()
    return before == programs - 1


@triton.jit
def _clear(table, totals, least, left, ended, k, size, BINS: tl.constexpr, STEP: tl.constexpr, program=None):  # noqa: ARG001
    one = tl.arange(0, 1)
    tl.store(table + tl.arange(0, BINS), tl.zeros((BINS,), tl.int64))
    for first in range(0, size, STEP):
        total = first + tl.arange(0, STEP)
        tl.store(totals + total, tl.zeros((STEP,), tl.int32), mask=total < size)
    tl.store(least + one, tl.zeros((1,), tl.int32))
    tl.store(left + one, tl.zeros((1,), tl.int64) + k)
    tl.store(ended + one, tl.zeros((1,), tl.int32))


@triton.jit
def _count_digits(
    x,
    grad,
    status,
    table,
    least,
    left,
    ended,
    n,
    programs,
    SHIFT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    program=None,
):
    """Count the digits; the program that ends last appends the highest one that leaves enough elements, notes how many
    it has to give, and clears the table. A gradient is added to x first.
    """
    found = tl.load(least)
    digit = tl.arange(0, 1 << WIDTH)
    counts = tl.zeros((1 << WIDTH,), tl.int32)
    for start in range(number(program) * BLOCK, n, programs * BLOCK):
        i = start + tl.arange(0, BLOCK)
        if grad is None:
            value = magnitudes(x, i, n)
        else:
            total = compensate(grad, x, status, i, n)
            tl.store(x + i, total, mask=i < n)
            value = _magnitude(total, i < n)
        meant = (value >> (SHIFT + WIDTH)) == found
        # The last digits have few magnitudes to count, and most blocks none.
        if tl.max(meant.to(tl.int32)) > 0:
            counts += tl.histogram((value >> SHIFT) & ((1 << WIDTH) - 1), 1 << WIDTH, meant)
    tl.atomic_add(table + digit, counts.to(tl.int64), mask=counts > 0, sem="relaxed")
    if _ends_last(ended, programs):
        counted, wanted = tl.load(table + digit), tl.load(left)
        chosen = tl.sum((tl.cumsum(counted, 0, reverse=True) >= wanted).to(tl.int32)) - 1
        above = tl.sum(tl.where(digit > chosen, counted, 0))
        tl.store(least, (found << WIDTH) + chosen)
        tl.store(left, wanted - above)
        tl.store(table + digit, tl.zeros((1 << WIDTH,), tl.int64))
        tl.store(ended, 0)


@triton.jit
def _count_largest(
    x,
    least,
    ties,
    larger,
    equal,
    totals,
    starts,
    kept,
    ended,
    n,
    programs,
    segments,
    SEGMENT_PARTS: tl.constexpr,
    STEP: tl.constexpr,
    PART: tl.constexpr,
    program=None,
):
    """Count the larger and the equal ones of each part and of its segment; the program that ends last finds how many of
    both are in front of each segment, and how many the segment keeps: of the equal ones the first of the tensor.
    """
    magnitude, limit, part = magnitudes(x, elements(PART, program), n), tl.load(least), number(program)
    more, same = tl.sum((magnitude > limit).to(tl.int32)), tl.sum((magnitude == limit).to(tl.int32))
    tl.store(larger + part, more)
    tl.store(equal + part, same)
    tl.atomic_add(totals + part // SEGMENT_PARTS, more, sem="relaxed")
    tl.atomic_add(totals + segments + part // SEGMENT_PARTS, same, sem="relaxed")
    if _ends_last(ended, programs):
        wanted = tl.load(ties)
        larger_before = tl.zeros((1,), tl.int64)
        equal_before = tl.zeros((1,), tl.int64)
        for first in range(0, segments, STEP):
            segment = first + tl.arange(0, STEP)
            inside = segment < segments
            of_larger = tl.load(totals + segment, mask=inside, other=0).to(tl.int64)
            of_equal = tl.load(totals + segments + segment, mask=inside, other=0).to(tl.int64)
            equal_ends = equal_before + tl.cumsum(of_equal, 0)
            tl.store(starts + segment, larger_before + tl.cumsum(of_larger, 0) - of_larger, mask=inside)
            tl.store(starts + segments + segment, equal_ends - of_equal, mask=inside)
            ties_kept = tl.minimum(equal_ends, wanted) - tl.minimum(equal_ends - of_equal, wanted)
            tl.store(kept + segment, (of_larger + ties_kept).to(tl.int32), mask=inside)
            larger_before += tl.sum(of_larger, axis=0)
            equal_before += tl.sum(of_equal, axis=0)


@triton.jit
def _emit_largest(
    x,
    least,
    ties,
    larger,
    equal,
    starts,
    values,
    indices,
    n,
    segments,
    CLEAR: tl.constexpr,
    SEGMENT_PARTS: tl.constexpr,
    PART: tl.constexpr,
    program=None,
):
    i, part = elements(PART, program), number(program)
    segment = part // SEGMENT_PARTS
    other = segment * SEGMENT_PARTS + tl.arange(0, SEGMENT_PARTS)
    larger_before = tl.load(starts + segment) + tl.sum(tl.load(larger + other, mask=other < part, other=0))
    equal_before = tl.load(starts + segments + segment) + tl.sum(tl.load(equal + other, mask=other < part, other=0))
    magnitude, limit, wanted = magnitudes(x, i, n), tl.load(least), tl.load(ties)
    kept = magnitude > limit
    # Most parts have no magnitude that is just the k-th, or have all of them after the last that is kept.
    if (tl.load(equal + part) > 0) & (equal_before < wanted):
        same = magnitude == limit
        kept = kept | (same & (equal_before + rank(same) < wanted))
    place = larger_before + tl.minimum(equal_before, wanted) + rank(kept)
    tl.store(values + place, tl.load(x + i, mask=kept), mask=kept)
    tl.store(indices + place, i.to(tl.int16), mask=kept)
    if CLEAR:
        tl.store(x + i, tl.zeros((PART,), tl.float32), mask=kept)


def write_largest(
    x: Tensor,
    values: Tensor,
    indices: Tensor,
    counts: Tensor,
    grad: Tensor | None = None,
    status: Tensor | None = None,
) -> None:
    """Write the largest magnitudes, as many as fit, and their indices.

    Args:
        x: float32, n elements.
        values: float32, k elements.
        indices: int16, k elements.
        counts: int32, one for each segment: receives how many are kept there.
        grad: float32, n elements: x becomes x + grad, and then 0 where it was written; None: x is not changed.
        status: int32, one element, or None: as for ``topk_encode_feedback``.
    """
    n, segments, parts = x.numel(), counts.numel(), triton.cdiv(x.numel(), PART)
    widest = 1 << max(width for _, width in _DIGITS)
    table, totals = scratch(widest, torch.int64, x), scratch(2 * segments, torch.int32, x)
    least, left, ended = scratch(1, torch.int32, x), scratch(1, torch.int64, x), scratch(1, torch.int32, x)
    sizes = values.numel(), 2 * segments
    launch(_clear, (1,), table, totals, least, left, ended, *sizes, BINS=widest, STEP=_AT_ONCE)
    programs = min(triton.cdiv(n, BLOCK), _PROGRAMS)
    added: tuple[Tensor | None, Tensor | None] = grad, status
    for shift, width in _DIGITS:
        found = table, least, left, ended
        form = {"SHIFT": shift, "WIDTH": width, "BLOCK": BLOCK}
        launch(_count_digits, (programs,), x, *added, *found, n, programs, **form)
        added = None, None
    larger, equal = scratch(parts, torch.int32, x), scratch(parts, torch.int32, x)
    starts = scratch(2 * segments, torch.int64, x)
    limits, form = (x, least, left, larger, equal), {"SEGMENT_PARTS": _PARTS, "PART": PART}
    ends = totals, starts, counts, ended
    launch(_count_largest, (parts,), *limits, *ends, n, parts, segments, STEP=_AT_ONCE, **form)
    launch(_emit_largest, (parts,), *limits, starts, values, indices, n, segments, CLEAR=grad is not None, **form)
