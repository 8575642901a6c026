"""A scale for each element, by which gradients are divided before they are sent."""

import torch
from torch import Tensor

__all__ = ["LARGEST", "LEAST", "divisor"]

LARGEST = 2.0**60
"""The largest square root of a square, in units that are near the mean of the scales: no square overflows."""

LEAST = 2.0**-100
"""The smallest scale: a gradient that comes after many steps of zeros can be divided by it."""


def divisor(scale: Tensor) -> Tensor:
    """The scale, or 1 where it is 0: there nothing has arrived yet."""
    return torch.where(scale == 0, 1.0, scale)
