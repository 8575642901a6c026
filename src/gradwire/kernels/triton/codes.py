"""Codes of 1 or 2 bits in bytes, as ``gradwire.kernels.codes`` lays them out: the first element in the highest bits."""

import triton
import triton.language as tl

from gradwire.kernels.triton.tile import number

__all__ = ["pack", "places", "unpack"]


@triton.jit
def places(BYTES: tl.constexpr, BITS: tl.constexpr, program=None):
    """The indices of this program's bytes, and those of the elements in each: (BYTES,), (BYTES, 8 // BITS)."""
    byte = number(program) * BYTES + tl.arange(0, BYTES)
    return byte, byte[:, None] * (8 // BITS) + tl.arange(0, 8 // BITS)[None, :]


@triton.jit
def pack(values, BITS: tl.constexpr):
    """Pack each row of values below 2**BITS into a byte."""
    return tl.sum(values << _shifts(BITS), axis=1).to(tl.uint8)


@triton.jit
def unpack(codes, BITS: tl.constexpr):
    """Unpack the values in each byte, one row for each."""
    return (codes.to(tl.int32)[:, None] >> _shifts(BITS)) & ((1 << BITS) - 1)


@triton.jit
def _shifts(BITS: tl.constexpr):
    return (8 - BITS - tl.arange(0, 8 // BITS) * BITS)[None, :]
