"""Bits in bytes, the first in the lowest bit, and sums of blocks in lanes, as ``gradwire.kernels.sums`` adds them."""

import triton
import triton.language as tl

__all__ = ["ROWS", "pack_signs", "total_of_16", "total_of_32", "unpack_signs"]

ROWS = 16  # blocks for one program


@triton.jit
def pack_signs(positive):
    """Pack each row of eight bools into a byte."""
    return tl.sum(positive.to(tl.int32) << tl.arange(0, 8)[None, :], axis=1).to(tl.uint8)


@triton.jit
def unpack_signs(codes):
    """Unpack the bools in each byte, one row for each."""
    return ((codes.to(tl.int32)[:, None] >> tl.arange(0, 8)[None, :]) & 1) != 0


@triton.jit
def total_of_32(lanes, ROWS: tl.constexpr):
    """Compute the sum of each row of 32, as a tree."""
    return total_of_16(_fold(lanes, ROWS, 16), ROWS)


@triton.jit
def total_of_16(lanes, ROWS: tl.constexpr):
    """Compute the sum of each row of 16, as a tree."""
    four = _fold(_fold(lanes, ROWS, 8), ROWS, 4)
    return tl.reshape(_fold(_fold(four, ROWS, 2), ROWS, 1), (ROWS,))


@triton.jit
def _fold(lanes, ROWS: tl.constexpr, HALF: tl.constexpr):
    """Add the upper half of the lanes to the lower one."""
    low, high = tl.split(tl.permute(tl.reshape(lanes, (ROWS, 2, HALF)), (0, 2, 1)))
    return low + high
