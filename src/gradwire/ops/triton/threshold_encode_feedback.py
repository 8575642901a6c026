"""What exceeds a threshold, with a residual."""

from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._threshold import write_exceeding

__all__ = ["threshold_encode_feedback"]


def threshold_encode_feedback(
    grad: Tensor, residual: Tensor, used: Tensor, stream: Tensor, threshold: float, status: Tensor | None = None,
    level: Tensor | None = None,
) -> None:  # fmt: skip
    """As the operation."""
    write_exceeding(residual, used, stream, float32(threshold), level, grad, status)
