"""Moments of segments, and the norms of whole tensors that follow from them, as ``compressors/levels/ops.py`` has them.

One launch adds up each segment, 16 elements after the other. One program for each tensor then adds up its segments as a
tree, in float64.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.float32 import float32
from gradwire.kernels.triton.kernel_launch import launch, scratch
from gradwire.kernels.triton.lengths import exponent_of, power_of_two
from gradwire.kernels.triton.signs import total_of_16
from gradwire.kernels.triton.status import flag_nonfinite
from gradwire.kernels.triton.sums import tree_sum
from gradwire.kernels.triton.tile import blocks

__all__ = ["write_moments", "write_norm"]

_ROWS = 8  # segments for one program
_STEP = 1024
_AHEAD = tl.constexpr(64)  # elements of a segment that are loaded at once
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_TINY = tl.constexpr(2.0**-120)
_USUAL = tl.constexpr(40)


@triton.jit
def _exponent_of_sums(largest):
    """The exponent of the unit of the sums: 0 as long as no square can vanish or overflow."""
    exponent = exponent_of(largest)
    return tl.where(tl.abs(exponent) <= _USUAL, 0, exponent)


@triton.jit
def _sums_in_units(x, origin, exponent, begin, n, SEGMENT: tl.constexpr, ROWS: tl.constexpr):
    """The sums of the distances and of their squares in units of 2^exponent, in which no square vanishes or overflows:
    (ROWS, 16).
    """
    unit = power_of_two(-exponent)[:, None]
    sums = tl.zeros((ROWS, 16), tl.float32)
    squares = tl.zeros((ROWS, 16), tl.float32)
    for start in range(0, tl.minimum(n, SEGMENT), 16):
        i = (begin + start)[:, None] + tl.arange(0, 16)[None, :]
        values = tl.load(x + i, mask=i < n, other=0.0)
        distance = tl.where(i < n, (values - origin[:, None]) * unit, 0.0)
        sums += distance
        squares += distance * distance
    return sums, squares


@triton.jit
def _write_moments(
    grad,
    residual,
    table,
    status,
    n,
    count,
    CENTRED: tl.constexpr,
    SEGMENT: tl.constexpr,
    ROWS: tl.constexpr,
    program=None,
):
    """Measure ``grad``, or residual + grad, which then becomes the residual."""
    row = blocks(ROWS, program)
    begin = row * SEGMENT
    origin = tl.zeros((ROWS,), tl.float32)
    if CENTRED:
        origin = tl.load(grad + begin, mask=row < count, other=0.0)
        if residual is not None:
            origin = tl.load(residual + begin, mask=row < count, other=0.0) + origin
            # The first element is overwritten below, perhaps by another thread.
            tl.debug_barrier()
    sums = tl.zeros((ROWS, 16), tl.float32)
    squares = tl.zeros((ROWS, 16), tl.float32)
    largest = tl.zeros((ROWS, 16), tl.int32)
    for start in range(0, tl.minimum(n, SEGMENT), _AHEAD):
        for part in tl.static_range(0, _AHEAD, 16):
            i = (begin + start + part)[:, None] + tl.arange(0, 16)[None, :]
            inside = i < n
            x = tl.load(grad + i, mask=inside, other=0.0)
            if residual is not None:
                old = tl.load(residual + i, mask=inside, other=0.0)
                x = old + x
                tl.store(residual + i, x, mask=inside)
                if status is not None:
                    tl.store(grad + i, old, mask=inside)
            distance = tl.where(inside, x - origin[:, None], 0.0)
            sums += distance
            squares += distance * distance
            largest = tl.maximum(largest, x.to(tl.int32, bitcast=True) & _MAGNITUDE)
    most = tl.max(largest, axis=1)
    if status is not None:
        flag_nonfinite(most.to(tl.float32, bitcast=True), status)
    exponent = _exponent_of_sums(most)
    if tl.sum(tl.where((exponent != 0) & (row < count), 1, 0)) > 0:
        measured = grad
        if residual is not None:
            tl.debug_barrier()
            measured = residual
        sums, squares = _sums_in_units(measured, origin, exponent, begin, n, SEGMENT, ROWS)
    place, inside = table + row * 4, row < count
    tl.store(place, most.to(tl.float32, bitcast=True), mask=inside)
    tl.store(place + 1, origin, mask=inside)
    tl.store(place + 2, total_of_16(sums, ROWS), mask=inside)
    tl.store(place + 3, total_of_16(squares, ROWS), mask=inside)


def write_moments(
    x: Tensor, residual: Tensor | None, table: Tensor, centred: bool, status: Tensor | None, segment: int
) -> None:
    """Write the moments of each segment of x; of residual + x, which becomes the residual, where there is one."""
    count = table.numel() // 4
    form = {"CENTRED": centred, "SEGMENT": segment, "ROWS": _ROWS}
    launch(_write_moments, (triton.cdiv(count, _ROWS),), x, residual, table, status, x.numel(), count, **form)


@triton.jit
def _largest_of(table, count, STEP: tl.constexpr):
    """The largest magnitude of all segments, as the integer of its bits: (1,)."""
    found = tl.zeros((STEP,), tl.int32)
    for start in range(0, count, STEP):
        row = start + tl.arange(0, STEP)
        magnitude = tl.load(table + row * 4, mask=row < count, other=0.0).to(tl.int32, bitcast=True)
        found = tl.maximum(found, magnitude)
    return tl.zeros((1,), tl.int32) + tl.max(found, axis=0)


@triton.jit
def _sums_at(table, row, count, n, SEGMENT: tl.constexpr):
    """The origin, the sums and the number of elements of each segment, in float64."""
    inside, place = row < count, table + row * 4
    magnitude = tl.load(place, mask=inside, other=0.0).to(tl.int32, bitcast=True)
    unit = power_of_two(_exponent_of_sums(magnitude)).to(tl.float64)
    origin = tl.load(place + 1, mask=inside, other=0.0).to(tl.float64)
    total = tl.load(place + 2, mask=inside, other=0.0).to(tl.float64) * unit
    squares = tl.load(place + 3, mask=inside, other=0.0).to(tl.float64) * (unit * unit)
    elements = tl.where(row == count - 1, n - SEGMENT * (count - 1), SEGMENT).to(tl.float64)
    return origin, total, squares, elements


@triton.jit
def _length_of(table, leaves, n, count, size, SEGMENT: tl.constexpr, STEP: tl.constexpr):
    """The root of the sum of squares, in float64: (1,)."""
    for start in range(0, count, STEP):
        row = start + tl.arange(0, STEP)
        _, _, squares, _ = _sums_at(table, row, count, n, SEGMENT)
        tl.store(leaves + row, squares, mask=row < count)
    return tl.sqrt(tree_sum(leaves, count, size, STEP))


@triton.jit
def _deviation_of(table, leaves, n, count, size, SEGMENT: tl.constexpr, STEP: tl.constexpr):
    """The standard deviation, in float64: (1,)."""
    whole = tl.zeros((1,), tl.float64) + n
    for start in range(0, count, STEP):
        row = start + tl.arange(0, STEP)
        origin, total, _, elements = _sums_at(table, row, count, n, SEGMENT)
        tl.store(leaves + row, elements * (origin + total / elements), mask=row < count)
    mean = tree_sum(leaves, count, size, STEP) / whole
    # The sum is read before its place is written again.
    tl.debug_barrier()
    for start in range(0, count, STEP):
        row = start + tl.arange(0, STEP)
        origin, total, squares, elements = _sums_at(table, row, count, n, SEGMENT)
        within = squares - total * total / elements
        away = origin + total / elements - mean
        found = tl.where(within < 0.0, 0.0, within) + elements * away * away
        tl.store(leaves + row, found, mask=row < count)
    return tl.sqrt(tree_sum(leaves, count, size, STEP) / whole)


@triton.jit(do_not_specialize=["n", "count", "size"])
def _write_norm(
    table,
    norm,
    leaves,
    n,
    count,
    size,
    factor: tl.float32,
    LENGTH: tl.constexpr,
    CLIPPED: tl.constexpr,
    CUT: tl.constexpr,
    SEGMENT: tl.constexpr,
    STEP: tl.constexpr,
    program=None,  # noqa: ARG001
):
    if LENGTH:
        found = _length_of(table, leaves, n, count, size, SEGMENT, STEP).to(tl.float32)
    else:
        found = _largest_of(table, count, STEP).to(tl.float32, bitcast=True)
    if not CLIPPED:
        found = found * factor
    elif CUT:
        cut = _deviation_of(table, leaves, n, count, size, SEGMENT, STEP).to(tl.float32) * factor
        found = tl.where((cut > 0.0) & (cut < float("inf")) & (found > cut), cut, found)
    tl.store(norm + tl.arange(0, 1), tl.where(found < _TINY, 0.0, found))


def write_norm(table: Tensor, norm: Tensor, kind: str, factor: float, n: int, segment: int) -> None:
    """Write one norm of a tensor of ``n`` elements from its moments; one program adds them up."""
    count = table.numel() // 4
    size = 1 << max(0, count - 1).bit_length()
    form = {"LENGTH": kind == "length", "CLIPPED": kind == "clipped", "CUT": kind == "clipped" and factor != 0}
    leaves = scratch(size, torch.float64, table)
    numbers = n, count, size, float32(factor)
    launch(_write_norm, (1,), table, norm, leaves, *numbers, SEGMENT=segment, STEP=_STEP, **form)
