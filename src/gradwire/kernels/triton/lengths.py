"""Lengths of blocks, as ``gradwire.kernels.levels`` defines them: squares added 16 elements after the other."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.triton.kernel_launch import launch
from gradwire.kernels.triton.signs import total_of_16
from gradwire.kernels.triton.tile import blocks

__all__ = ["exponent_of", "power_of_two", "write_lengths"]

_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_TINY = tl.constexpr(2.0**-120)
_LEAST_SQUARES = tl.constexpr(2.0**-100)
_ROWS = 8  # blocks for one program


@triton.jit
def power_of_two(exponent):
    """Compute a power of two in float32, from an exponent from -126 to 127."""
    return (exponent + 127 << 23).to(tl.float32, bitcast=True)


@triton.jit
def exponent_of(magnitude):
    """Compute the exponent of a magnitude, given as the integer of its bits, between -126 and 126."""
    return tl.minimum(tl.maximum((magnitude >> 23) - 127, -126), 126)


@triton.jit
def _sixteen(x, more, first, n):
    """Sixteen elements of each block, those of two tensors added."""
    i = first + tl.arange(0, 16)[None, :]
    found = tl.load(x + i, mask=i < n, other=0.0)
    if more is not None:
        found += tl.load(more + i, mask=i < n, other=0.0)
    return found


@triton.jit
def _write_lengths(x, more, norms, n, count, size, ROWS: tl.constexpr, program=None):
    block = blocks(ROWS, program)
    begin = (block * size)[:, None]
    sums = tl.zeros((ROWS, 16), tl.float32)
    largest = tl.zeros((ROWS, 16), tl.int32)
    for start in range(0, size, 16):
        found = _sixteen(x, more, begin + start, n)
        sums += found * found
        largest = tl.maximum(largest, found.to(tl.int32, bitcast=True) & _MAGNITUDE)
    squares, exponent = total_of_16(sums, ROWS), exponent_of(tl.max(largest, axis=1))
    plain = (squares >= _LEAST_SQUARES) & (squares < float("inf"))
    norm = tl.sqrt_rn(squares)
    if tl.sum((~plain).to(tl.int32)) > 0:
        # In units near the largest element no square vanishes or overflows.
        unit = power_of_two(-exponent)[:, None]
        scaled = tl.zeros((ROWS, 16), tl.float32)
        for start in range(0, size, 16):
            found = _sixteen(x, more, begin + start, n) * unit
            scaled += found * found
        norm = tl.where(plain, norm, tl.sqrt_rn(total_of_16(scaled, ROWS)) * power_of_two(exponent))
    tl.store(norms + block, tl.where(norm < _TINY, 0.0, norm), mask=block < count)


def write_lengths(x: Tensor, more: Tensor | None, norms: Tensor, block: int) -> None:
    """Write the root of the sum of squares of each block of x, or of x + more."""
    count = norms.numel()
    launch(_write_lengths, (triton.cdiv(count, _ROWS),), x, more, norms, x.numel(), count, block, ROWS=_ROWS)
