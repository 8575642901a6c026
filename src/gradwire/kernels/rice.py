"""Golomb-Rice codes of increasing places, in two streams of bits.

The gap before a place, g = place - (the place before) - 1, is cut at bit b: the b low bits of every gap go into one
stream, lowest bit first, and g >> b zeros followed by a one into the other. Whatever the gaps are, k places below n
take k b + k + ((n - k) >> b) bits, so a field of that size never overflows.
"""

import torch
from torch import Tensor

from gradwire.kernels.bits import pack_bits, unpack_bits

__all__ = ["read_rice", "rice_bytes", "rice_shift", "write_rice"]


def rice_shift(n: int, k: int) -> int:
    """The shift b with which the bound is smallest, which is at most a bit for each index.

    >>> rice_shift(1000, 10), rice_shift(1000, 600), rice_shift(7, 0)
    (6, 0, 0)
    """
    return max(0, ((n - k) // k).bit_length() - 1) if k else 0


def rice_bytes(n: int, k: int) -> tuple[int, int]:
    """The largest number of bytes of the two streams of k indices below n.

    >>> rice_bytes(1000, 10)
    (8, 4)
    """
    shift = rice_shift(n, k)
    return -(-k * shift // 8), -(-(k + (n - k >> shift)) // 8)


def write_rice(places: Tensor, shift: int, low: Tensor, high: Tensor) -> None:
    """Write increasing places (int64) into the streams ``low`` and ``high`` (uint8), which are filled up with zeros."""
    gaps = places.diff(prepend=places.new_full((1,), -1)) - 1
    pack_bits((gaps.unsqueeze(1) >> _bits(shift, gaps) & 1).view(-1), low)
    ones = torch.zeros(8 * high.numel(), dtype=torch.bool, device=places.device)
    ones[((gaps >> shift) + 1).cumsum(0) - 1] = True
    pack_bits(ones, high)


def read_rice(low: Tensor, high: Tensor, k: int, shift: int, n: int) -> Tensor:
    """Read at most ``k`` indices, as int64; missing ones, and those not below ``n``, are left out."""
    ones = unpack_bits(high, 8 * high.numel()).nonzero().view(-1)[:k]
    # A hostile gap must not overflow: one that is n or more ends the list whatever it is.
    quotients = (ones.diff(prepend=ones.new_full((1,), -1)) - 1).clamp_(max=(n >> shift) + 1)
    bits = unpack_bits(low, ones.numel() * shift).view(ones.numel(), shift).long()
    gaps = (quotients << shift) + (bits << _bits(shift, bits)).sum(1)
    places = (gaps.clamp_(max=n) + 1).cumsum(0) - 1
    return places[places < n]


def _bits(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device)
