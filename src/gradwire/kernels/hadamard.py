"""Rotations of blocks: random signs, and the Hadamard transform, which is sums and differences of pairs at distance
B / 2, then B / 4, ..., 1.
"""

import torch
from torch import Tensor

from gradwire.kernels.philox4x32 import philox_words

__all__ = ["LONGEST", "flip", "hadamard"]

LONGEST = 16384
"""Elements of the longest block that the kernels transform."""


def flip(x: Tensor, key: Tensor, step: int | Tensor) -> Tensor:
    """Change the sign of element i if bit i % 32 of word i // 32 of a stream is set."""
    words = philox_words(0, -(-x.numel() // 128), key, step, x.device).view(-1, 1)
    negative = (words >> torch.arange(32, device=x.device) & 1).view(-1)[: x.numel()]
    return torch.where(negative.bool(), -x, x)


def hadamard(blocks: Tensor) -> Tensor:
    """Compute H y for each row."""
    rows, size = blocks.shape
    half = size // 2
    while half:
        a, b = blocks.view(rows, -1, 2, half).unbind(2)
        blocks = torch.stack((a + b, a - b), 2).view(rows, size)
        half //= 2
    return blocks
