"""Powers of two on a GPU, in the tiles of ``_qsgd``: a group of 8 elements takes the words of two counters."""

import triton
import triton.language as tl

from gradwire.ops.triton._philox import philox_words

__all__ = ["base_of", "carries", "code_of", "value_of"]

_SIGN = tl.constexpr(-0x80000000)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_FRACTION = tl.constexpr(0x7FFFFF)


@triton.jit
def base_of(magnitude: tl.tensor) -> tl.tensor:
    """The biased exponent below the window of each block, from its largest magnitude; 255 where that is no number."""
    exponent = magnitude >> 23
    return tl.where(exponent == 255, 255, tl.maximum(exponent - 126, 0))


@triton.jit
def carries(group: tl.tensor, key: tl.tensor, step: tl.tensor, RANDOM: tl.constexpr) -> tl.tensor:
    """What is added to the bits of each element of a tile."""
    lane = tl.arange(0, 8)[None, None, :]
    if RANDOM:
        first, second = _words(group * 2, key, step, lane), _words(group * 2 + 1, key, step, lane)
        return (tl.where(lane < 4, first, second) & _FRACTION).to(tl.int32)
    return tl.zeros_like(group)[:, :, None].to(tl.int32) + lane * 0 + (1 << 22)


@triton.jit
def code_of(x: tl.tensor, base: tl.tensor, carry: tl.tensor) -> tl.tensor:
    """The code of each element of a tile, as int32."""
    bits = x.to(tl.int32, bitcast=True)
    # Beyond 2**31 the sum of a NaN's bits would be negative; its block has no codes.
    exponent = tl.minimum((((bits & _MAGNITUDE).to(tl.uint32) + carry.to(tl.uint32)) >> 23).to(tl.int32), 254)
    window = base[:, None, None]
    code = tl.maximum(exponent - window, 0) | ((bits >> 24) & 0x80)
    return tl.where(window == 255, 0, code)


@triton.jit
def value_of(code: tl.tensor, base: tl.tensor) -> tl.tensor:
    """What codes of 0 to 255 stand for in blocks of a base below 255."""
    place = code & 0x7F
    power = tl.minimum(place + base[:, None, None], 255) << 23
    return (tl.where(place == 0, 0, power) | ((code << 24) & _SIGN)).to(tl.float32, bitcast=True)


@triton.jit
def _words(counter: tl.tensor, key: tl.tensor, step: tl.tensor, lane: tl.tensor) -> tl.tensor:
    word0, word1, word2, word3 = philox_words(counter, key, step)
    low = tl.where(lane % 2 == 0, word0[:, :, None], word1[:, :, None])
    high = tl.where(lane % 2 == 0, word2[:, :, None], word3[:, :, None])
    return tl.where(lane % 4 < 2, low, high)
