"""Scales that follow the received means: first the mean in the order of the reference, then every element.

One launch adds up blocks, one adds up the blocks of each tensor as a tree, and one moves the scales.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.sums import SUM_BLOCK
from gradwire.ops.triton.launch import BLOCK, launch, scratch
from gradwire.ops.triton.signs import blocks, total_of_32
from gradwire.ops.triton.sums import tree_sum
from gradwire.ops.triton.tile import elements
from gradwire.ops.validation import float32

__all__ = ["follow"]

_ROWS = 4
_STEP = 1024
_LARGEST = tl.constexpr(2.0**60)
_LEAST = tl.constexpr(2.0**-100)
_MOST = tl.constexpr(100)


@triton.jit
def _add_blocks(
    scale: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    SUM: tl.constexpr,
    ROWS: tl.constexpr,
    program: tl.tensor = None,
) -> None:
    block = blocks(ROWS, program)
    scales = tl.zeros((ROWS, 32), tl.float32)
    means = tl.zeros((ROWS, 32), tl.float32)
    for start in range(0, SUM, 32):
        i = (block * SUM + start)[:, None] + tl.arange(0, 32)[None, :]
        scales += tl.abs(tl.load(scale + i, mask=i < n, other=0.0))
        means += tl.abs(tl.load(out + i, mask=i < n, other=0.0))
    tl.store(sums + block, total_of_32(scales, ROWS), mask=block * SUM < n)
    tl.store(sums + size + block, total_of_32(means, ROWS), mask=block * SUM < n)


@triton.jit(do_not_specialize=["count", "size", "n"])
def _add_sums(
    sums: tl.tensor,
    means: tl.tensor,
    count: tl.tensor,
    size: tl.tensor,
    n: tl.tensor,
    STEP: tl.constexpr,
    program: tl.tensor = None,  # noqa: ARG001
) -> None:
    """Sum as a tree of ``size`` leaves, of which those from ``count`` on are 0, and divide by ``n``."""
    one = tl.arange(0, 1)
    total = tree_sum(sums + tl.program_id(1) * size, count, size, STEP)
    tl.store(means + tl.program_id(1) + one, tl.div_rn(total, tl.zeros((1,), tl.float32) + n))


@triton.jit
def _follow(
    out: tl.tensor,
    scale: tl.tensor,
    bad: tl.tensor,
    means: tl.tensor,
    n: tl.tensor,
    beta: tl.float32,
    rest: tl.float32,
    floor: tl.float32,
    BLOCK: tl.constexpr,
    program: tl.tensor = None,
) -> None:
    i, one = elements(BLOCK, program), tl.arange(0, 1)
    level, first = tl.load(means + one), tl.load(means + 1 + one)
    usable = (level > 0.0) & (level < float("inf"))
    exponent = (level.to(tl.int32, bitcast=True) >> 23 & 255) - 126
    exponent = tl.where(usable, tl.minimum(tl.maximum(exponent, -_MOST), _MOST), 0)
    unit = (exponent + 127 << 23).to(tl.float32, bitcast=True)
    inverse = (127 - exponent << 23).to(tl.float32, bitcast=True)
    least = level * floor
    least = tl.where(least < _LEAST, _LEAST, least)
    known = (first > 0.0) & (first < float("inf"))
    start = tl.where(known, tl.where(first < _LEAST, _LEAST, first), 0.0)

    old = tl.load(scale + i, mask=i < n, other=0.0)
    value = tl.load(out + i, mask=i < n, other=0.0) * tl.where(old == 0.0, 1.0, old)
    before, now = old * inverse, tl.abs(value * inverse)
    now = tl.where(now > _LARGEST, _LARGEST, now)
    moved = tl.sqrt_rn(before * before * beta + now * now * rest) * unit
    moved = tl.where(moved < least, least, moved)
    moved = tl.where(tl.abs(value) < float("inf"), moved, old)
    moved = tl.where(level == 0.0, start, moved)
    tl.store(out + i, value, mask=i < n)
    tl.store(scale + i, moved, mask=(i < n) & (tl.load(bad) == 0))


def follow(out: Tensor, scale: Tensor, bad: Tensor, beta: float, floor: float) -> None:
    """Multiply by the scales, and update them: ``precondition_update``."""
    n = out.numel()
    count = triton.cdiv(n, SUM_BLOCK)
    size = 1 << max(0, count - 1).bit_length()
    sums, means = scratch(2 * size, torch.float32, out), scratch(2, torch.float32, out)
    launch(_add_blocks, (triton.cdiv(count, _ROWS),), scale, out, sums, n, size, SUM=SUM_BLOCK, ROWS=_ROWS)
    launch(_add_sums, (1, 2), sums, means, count, size, n, STEP=_STEP)
    numbers = float32(beta), float32(1 - beta), float32(floor)
    launch(_follow, (triton.cdiv(n, BLOCK),), out, scale, bad.view(torch.uint8), means, n, *numbers, BLOCK=BLOCK)
