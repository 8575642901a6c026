"""Scales that follow the received means: first the mean in the order of the reference, then every element.

One launch adds up blocks, one adds up the blocks of each tensor as a tree, and one moves the scales.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.float32 import float32
from gradwire.kernels.sums import SUM_BLOCK
from gradwire.kernels.triton.kernel_launch import BLOCK, launch, scratch
from gradwire.kernels.triton.signs import total_of_32
from gradwire.kernels.triton.sums import tree_sum
from gradwire.kernels.triton.tile import blocks, elements

__all__ = ["follow"]

_ROWS = 4
_STEP = 1024
_LARGEST = tl.constexpr(2.0**60)
_LEAST = tl.constexpr(2.0**-100)
_MOST = tl.constexpr(100)
_GROWN = tl.constexpr(4.0)


@triton.jit
def _multiplied(out, scale):
    """Multiply by the scale, where one of 0 counts as 1."""
    return out * tl.where(scale == 0.0, 1.0, scale)


@triton.jit
def _add_blocks(scale, out, squares, sums, n, size, SUM: tl.constexpr, ROWS: tl.constexpr, program=None):
    """The squares of the scales and of what arrives, in float64, and the magnitudes of ``out``."""
    block = blocks(ROWS, program)
    scales = tl.zeros((ROWS, 32), tl.float64)
    arrived = tl.zeros((ROWS, 32), tl.float64)
    means = tl.zeros((ROWS, 32), tl.float32)
    for start in range(0, SUM, 32):
        i = (block * SUM + start)[:, None] + tl.arange(0, 32)[None, :]
        old = tl.load(scale + i, mask=i < n, other=0.0)
        given = tl.load(out + i, mask=i < n, other=0.0)
        value = _multiplied(given, old)
        # The product of two such numbers is exact, so that it may be added in one operation.
        exact = tl.where(tl.abs(value) < float("inf"), value, 0.0).to(tl.float64)
        scales += old.to(tl.float64) * old.to(tl.float64)
        arrived += exact * exact
        means += tl.abs(given)
    tl.store(squares + block, total_of_32(scales, ROWS), mask=block * SUM < n)
    tl.store(squares + size + block, total_of_32(arrived, ROWS), mask=block * SUM < n)
    tl.store(sums + block, total_of_32(means, ROWS), mask=block * SUM < n)


@triton.jit(do_not_specialize=["count", "size", "n"])
def _add_sums(squares, sums, means, first, count, size, n, STEP: tl.constexpr, program=None):  # noqa: ARG001
    """Sum as trees of ``size`` leaves, of which those from ``count`` on are 0, and divide by ``n``."""
    one, which = tl.arange(0, 1), tl.program_id(1)
    if which < 2:
        total = tree_sum(squares + which * size, count, size, STEP)
        tl.store(means + which + one, total / (tl.zeros((1,), tl.float64) + n))
    else:
        magnitudes = tree_sum(sums, count, size, STEP)
        tl.store(first + one, tl.div_rn(magnitudes, tl.zeros((1,), tl.float32) + n))


@triton.jit
def _follow(
    out,
    scale,
    bad,
    means,
    start,
    n,
    beta: tl.float32,
    rest: tl.float32,
    floor: tl.float32,
    BLOCK: tl.constexpr,
    program=None,
):
    i, one = elements(BLOCK, program), tl.arange(0, 1)
    level, arrived, first = tl.load(means + one), tl.load(means + 1 + one), tl.load(start + one)
    grown = arrived > level * _GROWN
    size = tl.sqrt(tl.where(grown, arrived, level))
    exponent = (size.to(tl.int64, bitcast=True) >> 52 & 2047) - 1022
    exponent = tl.where(size > 0.0, tl.minimum(tl.maximum(exponent, -_MOST), _MOST), 0).to(tl.int32)
    unit = (exponent + 127 << 23).to(tl.float32, bitcast=True)
    inverse = (127 - exponent << 23).to(tl.float32, bitcast=True)
    growth = tl.where(grown & (level > 0.0), size / tl.sqrt(level), 1.0)
    factor = (growth * inverse.to(tl.float64)).to(tl.float32)
    least = (size * floor).to(tl.float32)
    least = tl.where(least < _LEAST, _LEAST, least)
    known = (first > 0.0) & (first < float("inf"))
    begun = tl.where(known, tl.where(first < _LEAST, _LEAST, first), 0.0)

    old = tl.load(scale + i, mask=i < n, other=0.0)
    value = _multiplied(tl.load(out + i, mask=i < n, other=0.0), old)
    before, now = old * factor, tl.abs(value * inverse)
    before = tl.where(before > _LARGEST, _LARGEST, before)
    now = tl.where(now > _LARGEST, _LARGEST, now)
    moved = tl.sqrt_rn(before * before * beta + now * now * rest) * unit
    moved = tl.where(moved < least, least, moved)
    moved = tl.where(tl.abs(value) < float("inf"), moved, old)
    moved = tl.where(level == 0.0, begun, moved)
    tl.store(out + i, value, mask=i < n)
    tl.store(scale + i, moved, mask=i < tl.where(tl.load(bad) == 0, n, 0))


def follow(out: Tensor, scale: Tensor, bad: Tensor, beta: float, floor: float) -> None:
    """Multiply by the scales, and update them: ``precondition_update``."""
    n = out.numel()
    count = triton.cdiv(n, SUM_BLOCK)
    size = 1 << max(0, count - 1).bit_length()
    squares, sums = scratch(2 * size, torch.float64, out), scratch(size, torch.float32, out)
    means, first = scratch(2, torch.float64, out), scratch(1, torch.float32, out)
    form = {"SUM": SUM_BLOCK, "ROWS": _ROWS}
    launch(_add_blocks, (triton.cdiv(count, _ROWS),), scale, out, squares, sums, n, size, **form)
    launch(_add_sums, (1, 3), squares, sums, means, first, count, size, n, STEP=_STEP)
    numbers = float32(beta), float32(1 - beta), float32(floor)
    flag = bad.view(torch.uint8)
    launch(_follow, (triton.cdiv(n, BLOCK),), out, scale, flag, means, first, n, *numbers, BLOCK=BLOCK)
