"""The elements that a random draw keeps, side by side: marked first, and then taken."""

import torch
from torch import Tensor

__all__ = ["take_drawn"]


def take_drawn(
    x: Tensor, whole_counts: Tensor, whole_values: Tensor, whole_indices: Tensor,
    counts: Tensor, values: Tensor, indices: Tensor, s: float, key: int, step: int,
) -> None:  # fmt: skip
    """As the operation."""
    bitmap, whole = torch.empty(2, -(-x.numel() // 8), dtype=torch.uint8, device=x.device)
    torch.ops.gradwire.mark_drawn(x, bitmap, counts, whole, whole_counts, s, key, step)
    torch.ops.gradwire.take_marked(x, whole, whole_counts, whole_values, whole_indices)
    torch.ops.gradwire.take_marked(x, bitmap, counts, values, indices)
