"""Signed powers of two in 4 bits: 3 for how far the exponent is below the largest, and a sign.

Element x becomes sign(x) 2^e, with 2^e = |x| rounded to the nearest power of two, up from 1.5. Exponents are those of
float32, 0 to 255; 255 only for what is not finite, and then all that is decoded is NaN. A stream is a bit for each
element, and then the codes of those whose bit is set, two to a byte, the first in its lower half.
"""

import math

import torch
from torch import Tensor

from gradwire.kernels.bits import unpack, unpack_bits

__all__ = ["INFINITE", "codes_of", "rounded", "unpack_stream", "values_of"]

INFINITE = 255
_DEPTH = 7
_SIGN = 8


def rounded(x: Tensor) -> Tensor:
    """Compute the exponents of |x| rounded to a power of two, int32."""
    bits = x.view(torch.int32) & 0x7FFFFFFF
    exponents = (bits + 0x400000 >> 23).clamp_(max=INFINITE - 1)
    return torch.where(bits >= INFINITE << 23, INFINITE, exponents)


def codes_of(x: Tensor, top: int) -> Tensor:
    """Compute the codes of elements whose exponents are ``top`` and up to 7 less, int32."""
    return (top - rounded(x)) | (x < 0).int() * _SIGN


def values_of(codes: Tensor, top: int) -> Tensor:
    """Decode integer codes to float32; ``top`` is taken as one in 0 to 255."""
    if top >= INFINITE:
        return torch.full(codes.shape, math.nan, dtype=torch.float32, device=codes.device)
    bits = (max(top, 0) - (codes & _DEPTH).int()).clamp_(min=0) << 23
    values = bits.view(torch.float32)
    return torch.where(codes >= _SIGN, -values, values)


def unpack_stream(stream: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Unpack indices below ``n``, int64, and their codes, uint8: as many as the bytes hold."""
    middle = -(-n // 8)
    packed = stream[middle:]
    codes = unpack(packed, 4, 2 * packed.numel())
    places = unpack_bits(stream[:middle], n).nonzero().view(-1)
    return places[: codes.numel()], codes[: places.numel()]
