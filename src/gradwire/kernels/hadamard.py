"""The Hadamard transform of blocks: sums and differences of pairs at distance B / 2, then B / 4, ..., 1."""

import torch
from torch import Tensor

__all__ = ["LONGEST", "hadamard"]

LONGEST = 16384
"""Elements of the longest block that the kernels transform."""


def hadamard(blocks: Tensor) -> Tensor:
    """Compute H y for each row."""
    rows, size = blocks.shape
    half = size // 2
    while half:
        a, b = blocks.view(rows, -1, 2, half).unbind(2)
        blocks = torch.stack((a + b, a - b), 2).view(rows, size)
        half //= 2
    return blocks
