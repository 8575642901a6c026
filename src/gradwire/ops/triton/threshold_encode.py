"""What exceeds a threshold, without a residual."""

from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._threshold import write_exceeding

__all__ = ["threshold_encode"]


def threshold_encode(x: Tensor, used: Tensor, stream: Tensor, threshold: float, level: Tensor | None = None) -> None:
    """As the operation."""
    write_exceeding(x, used, stream, float32(threshold), level)
