"""Signed powers of two in 4 bits, as ``gradwire.ops._exponents`` has them."""

import triton
import triton.language as tl

from gradwire.ops._exponents import INFINITE

__all__ = ["code_of", "value_of"]

_INFINITE = tl.constexpr(INFINITE)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def code_of(x: tl.tensor, top: tl.tensor) -> tl.tensor:
    """How far the exponents of |x|, rounded to a power of two, are below ``top``, and 8 where x < 0."""
    bits = x.to(tl.int32, bitcast=True) & _MAGNITUDE
    finite = tl.minimum((bits + 0x400000) >> 23, _INFINITE - 1)
    exponent = tl.where(bits >= _INFINITE << 23, _INFINITE, finite)
    return ((top - exponent) | tl.where(x < 0.0, 8, 0)) & 15


@triton.jit
def value_of(code: tl.tensor, top: tl.tensor) -> tl.tensor:
    """What codes stand for; ``top`` counts as one in 0 to 255."""
    exponent = tl.maximum(tl.maximum(top, 0) - (code & 7), 0)
    value = ((exponent << 23) | ((code & 8) << 28)).to(tl.float32, bitcast=True)
    return tl.where(top >= _INFINITE, float("nan"), value)
