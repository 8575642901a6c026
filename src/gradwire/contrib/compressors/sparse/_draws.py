"""Draws of random-k, and the form in which a payload that is summed carries their seed.

n elements are units of ``run`` neighbours, the last may be short; k strata cut the units into runs of equal size, up to
one; in each stratum a word of Philox chooses one unit. The seed is 32 bits. It travels in five floats that survive a
sum over ranks: a 1 that counts them, and the four bytes of the seed, which are divided by the count.
"""

import math

import torch
from torch import Tensor

from gradwire.kernels.philox4x32 import philox_words

__all__ = ["HEADER", "choose", "draws", "longest", "read_seed", "write_seed"]

HEADER = 5


def draws(n: int, ratio: float, run: int) -> int:
    """The number of units to choose: as many as hold ceil(ratio n) elements, at least one."""
    # 0.07 * 100 is 7.000000000000001 in binary; its ceiling must not be 8.
    wanted = math.ceil(round(ratio * n / run, 6))
    return min(-(-n // run), max(1, wanted))


def longest(n: int, k: int, run: int) -> int:
    """The number of units in the longest of ``k`` strata.

    >>> longest(10, 3, 1), longest(0, 0, 1)
    (4, 1)
    """
    units = -(-n // run)
    return -(-units // k) if k else 1


def choose(seed: Tensor, n: int, k: int, run: int) -> tuple[Tensor, Tensor]:
    """The first element of each chosen unit, and the size of its stratum; int64.

    Args:
        seed: int64 of one element.
        n: elements.
        k: strata.
        run: elements of a unit.
    """
    words = philox_words(0, -(-k // 4), seed, 0, seed.device).view(-1)[:k]
    edges = torch.arange(k + 1, device=seed.device) * -(-n // run) // max(k, 1)
    sizes = edges.diff()
    return (edges[:-1] + (words * sizes >> 32)) * run, sizes


def write_seed(seed: Tensor, header: Tensor) -> None:
    """Write a 1 and the bytes of the seed, int64 of one element, the lowest first."""
    header[:1].fill_(1.0)
    header[1:].copy_(seed >> torch.arange(0, 32, 8, device=header.device) & 0xFF)


def read_seed(header: Tensor) -> Tensor:
    """Read the seed, as int64 of one element; an invalid header gives an arbitrary seed."""
    data = (header[1:] / header[:1]).round().nan_to_num(0.0, 0.0, 0.0).clamp(0.0, 255.0).long()
    return (data << torch.arange(0, 32, 8, device=header.device)).sum(0, keepdim=True)
