"""The elements that are not between two thresholds, side by side: marked first, and then taken."""

import torch
from torch import Tensor

__all__ = ["take_beyond"]


def take_beyond(x: Tensor, counts: Tensor, values: Tensor, indices: Tensor, high: float, low: float) -> None:
    """As the operation."""
    bitmap = torch.empty(-(-x.numel() // 8), dtype=torch.uint8, device=x.device)
    torch.ops.gradwire.mark_beyond(x, bitmap, counts, high, low)
    torch.ops.gradwire.take_marked(x, bitmap, counts, values, indices)
