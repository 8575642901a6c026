"""8-bit codes on a GPU, in the tiles of ``_qsgd``; the values of a code are looked up in the codebook."""

import triton
import triton.language as tl

from gradwire.ops.triton._qsgd import largest, norm_of

__all__ = ["DYNAMIC", "LINEAR", "code_of", "scale_of", "step_of"]

LINEAR = tl.constexpr(0)
DYNAMIC = tl.constexpr(1)
_E4M3 = tl.constexpr(2)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_BYTE = tl.constexpr(0xFF)
_MIDDLE = tl.constexpr(12582912.0)
_AHEAD = tl.constexpr(0.8888888955116272)  # 8 / 9 in float32


@triton.jit
def scale_of(x: tl.tensor) -> tl.tensor:
    """The scale of each block of a tile."""
    return norm_of(largest(x))


@triton.jit
def step_of(norm: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """What the values of a codebook are multiplied by in each block."""
    return tl.div_rn(norm, tl.full(norm.shape, _largest(KIND), tl.float32))


@triton.jit
def code_of(x: tl.tensor, norm: tl.tensor, book: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """The code of each element of a tile, as int32."""
    usable = (norm > 0.0) & (norm < float("inf"))
    inverse = tl.where(usable, tl.div_rn(tl.full(norm.shape, 1.0, tl.float32), norm), 0.0)
    y = x * inverse[:, None, None]
    if KIND == LINEAR:
        code = (y * 127.0 + _MIDDLE).to(tl.int32, bitcast=True) & _BYTE
    elif KIND == DYNAMIC:
        code = _dynamic(y, book)
    elif KIND == _E4M3:
        code = _float8(y * 448.0, 3, 7)
    else:
        code = _float8(y * 57344.0, 2, 15)
    return tl.where(usable[:, None, None], code, 127 if KIND == DYNAMIC else 0)


@triton.jit
def _largest(KIND: tl.constexpr) -> tl.constexpr:
    return 127.0 if KIND == LINEAR else 1.0 if KIND == DYNAMIC else 448.0 if KIND == _E4M3 else 57344.0


@triton.jit
def _dynamic(y: tl.tensor, book: tl.tensor) -> tl.tensor:
    magnitude = tl.abs(y)
    first = tl.full(y.shape, 1.0, tl.float32)
    slope = first * tl.load(book + 264)
    for d in tl.static_range(1, 7):
        above = magnitude >= tl.load(book + 256 + d)
        first = tl.where(above, 1.0 * (1 << d), first)
        slope = tl.where(above, tl.load(book + 264 + d), slope)
    # Nothing is negative here, so the conversion to an integer is the floor.
    place = tl.minimum(magnitude * slope + first * _AHEAD, first + first - 1.0).to(tl.int32)
    place = tl.where(magnitude >= tl.load(book + 256), place, 0)
    place = tl.where(y >= tl.load(book + 263), 128, place)
    return 127 + tl.where(y < 0.0, -place, place)


@triton.jit
def _float8(scaled: tl.tensor, FRACTION: tl.constexpr, BIAS: tl.constexpr) -> tl.tensor:
    shift: tl.constexpr = 23 - FRACTION
    bits = scaled.to(tl.int32, bitcast=True)
    word = bits & _MAGNITUDE
    normal = ((word + (1 << (shift - 1)) - 1 + ((word >> shift) & 1)) >> shift) - ((127 - BIAS) << FRACTION)
    unit = 1.0 * (1 << (24 - BIAS - FRACTION))
    subnormal = (tl.abs(scaled) + unit).to(tl.int32, bitcast=True) - ((151 - BIAS - FRACTION) << 23)
    small = word < ((128 - BIAS) << 23)
    return tl.where(small, subnormal, normal) | ((bits >> 24) & 0x80)
