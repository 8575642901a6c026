"""bfloat16, where the interpreter's own conversion is wrong."""

import triton
import triton.language as tl

__all__ = ["bfloat_bits"]


@triton.jit
def bfloat_bits(x: tl.tensor) -> tl.tensor:
    """The bits of x in bfloat16, rounded to nearest even, as int16: the interpreter's own conversion truncates."""
    bits = x.to(tl.uint32, bitcast=True)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    quiet = bits | 0x400000
    return (tl.where(x == x, rounded, quiet) >> 16).to(tl.int16)
