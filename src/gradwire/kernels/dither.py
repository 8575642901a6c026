"""Dither, and the sample of a gradient, for thresholds that are chosen anew in every step.

Element i fires from d_i times the level on, d_i in [1, 2): the fractional part of i times the golden ratio. It differs
between neighbours as much as it can, so of equal elements just the wanted share fires, and it never changes, so
elements that gather at one pace fire one after the other.
"""

import torch
from torch import Tensor

__all__ = ["SAMPLE", "dither", "fires", "sampled_places"]

SAMPLE = 2048
"""Elements of a tensor that are looked at; all of a smaller one."""

_GOLDEN = 0x9E3779B9
_PLACE, _TURN = 0x85EBCA77, 0xC2B2AE3D
_WORD = 0xFFFFFFFF


def dither(places: Tensor) -> Tensor:
    """Compute the factors d of the elements at ``places``, int64.

    >>> [round(factor, 4) for factor in dither(torch.arange(4)).tolist()]
    [1.0, 1.618, 1.2361, 1.8541]
    """
    fraction = (places * _GOLDEN & _WORD) >> 9
    return (fraction.int() | 0x3F800000).view(torch.float32)


def fires(x: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Masks of the elements at or above their level, and at or below minus their level."""
    least = level * dither(torch.arange(x.numel(), device=x.device))
    return x >= least, x <= -least


def sampled_places(n: int, turn: Tensor) -> Tensor:
    """One index in each of up to ``SAMPLE`` equal runs of n elements, another one in every turn.

    Args:
        n: elements.
        turn: int64, 1 element.
    """
    count = min(n, SAMPLE)
    runs = torch.arange(count + 1, device=turn.device)
    edges = runs * n // max(count, 1)
    fraction = (runs[:-1] * _PLACE + turn * _TURN & _WORD) >> 8
    return edges[:-1] + (fraction * edges.diff() >> 24)
