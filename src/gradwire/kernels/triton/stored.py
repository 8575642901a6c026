"""Codes of 8 bits with a scale for each block, as ``gradwire.kernels.stored`` lays them out."""

import triton
import triton.language as tl

__all__ = ["code_scale", "write_rows"]

_MIDDLE = tl.constexpr(12582912.0)
_INFINITY = tl.constexpr(0x7F800000)
_LEAST = tl.constexpr(2.0**-100)
_MOST = tl.constexpr(0x7C010200)  # the bits of the largest scale of which 127 times is finite


@triton.jit
def code_scale(magnitude):
    """The scale of each block by the bits of its largest magnitude: 17 significant bits, rounded up if it can be."""
    largest_one = magnitude.to(tl.float32, bitcast=True)
    exact = tl.div_rn(largest_one, tl.full(magnitude.shape, 127.0, tl.float32)).to(tl.int32, bitcast=True)
    scale = tl.minimum((exact + 127) & ~127, _MOST).to(tl.float32, bitcast=True)
    return tl.where(magnitude >= _INFINITY, float("inf"), tl.where(largest_one < _LEAST, 0.0, scale))


@triton.jit
def write_rows(stored, values, scale, block, count, GROUPS: tl.constexpr, SPAN: tl.constexpr, when=True):
    """Write the rows of whole blocks, the codes and then their scale.

    Args:
        values: a tile of ``gradwire.kernels.triton.levels``, zeros beyond the end.
        block: the indices of the blocks of the tile, of ``count``.
        when: true: the rows are written.
    """
    byte = tl.arange(0, 4)[None, :]
    row, there = block[:, None] * (GROUPS * 8 + 4), block < tl.where(when, count, 0)
    parts = scale.to(tl.int32, bitcast=True)[:, None] >> byte * 8
    tl.store(stored + row + GROUPS * 8 + byte, parts.to(tl.uint8), mask=there[:, None])
    usable = (scale > 0.0) & (scale < float("inf"))
    inverse = tl.where(usable, tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale), 0.0)
    # At 2**23 and a half the last bit of a float32 is 1, so adding rounds to an integer.
    rounded = (values * inverse[:, None, None] + _MIDDLE).to(tl.int32, bitcast=True) & 0xFF
    column = tl.arange(0, SPAN)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
    room = (column < GROUPS * 8) & there[:, None, None]
    tl.store(stored + row[:, :, None] + column, tl.where(usable[:, None, None], rounded, 0).to(tl.uint8), mask=room)
