"""Sums in the order in which the lanes of a kernel add up."""

from torch import Tensor

__all__ = ["lane_sums"]

_LANES = 16


def lane_sums(parts: Tensor) -> Tensor:
    """Compute the sum of each row, in the order of a kernel with 16 lanes."""
    lanes = parts.new_zeros(parts.size(0), _LANES)
    for step in parts.view(parts.size(0), parts.size(1) // _LANES, _LANES).unbind(1):
        lanes += step
    for half in (8, 4, 2, 1):
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes.squeeze(1)
