"""The dither of ``gradwire.kernels.dither``."""

import triton
import triton.language as tl

__all__ = ["dither"]


@triton.jit
def dither(i):
    """The factors of the elements at the places ``i``, int64: the upper 23 bits of a fraction, as those of a float."""
    fraction = (i * 0x9E3779B9 & 0xFFFFFFFF) >> 9
    return (fraction | 0x3F800000).to(tl.int32).to(tl.float32, bitcast=True)
