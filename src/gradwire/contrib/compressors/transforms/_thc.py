"""THC: blocks under a random rotation, rounded at random to a grid that all ranks share.

A block of B elements becomes y = H D x: D flips signs at random, H is the Hadamard matrix of +1 and -1, a sum or a
difference of pairs at distance B / 2, then B / 4, ..., 1. The coordinates y / sqrt(B) of any x are nearly normal, with
the variance |x|^2 / B. The last block is padded with zeros to a power of two, at least 16.
"""

import math

from torch import Tensor

from gradwire.kernels.float32 import float32

__all__ = ["coordinates", "inverse_root", "parts"]


def coordinates(n: int, block: int) -> int:
    """The number of coordinates of ``n`` elements, the padding of the last block included."""
    return n // block * block + (_padded(n % block) if n % block else 0)


def parts(x: Tensor, block: int) -> list[tuple[slice, int]]:
    """The runs of blocks with their sizes: the full ones, and the last if it is shorter."""
    full, rest = divmod(x.numel(), block)
    found = [(slice(0, full), block)] if full else []
    return [*found, (slice(full, full + 1), _padded(rest))] if rest else found


def inverse_root(size: int) -> float:
    """Compute 1 / sqrt(size), rounded to float32."""
    return float32(1 / float32(math.sqrt(size)))


def _padded(count: int) -> int:
    return max(16, 1 << (count - 1).bit_length())
