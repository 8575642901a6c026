"""The k elements of largest magnitude, without a residual."""

from torch import Tensor

from gradwire.ops.triton._topk import write_largest

__all__ = ["topk_encode"]


def topk_encode(x: Tensor, values: Tensor, indices: Tensor, counts: Tensor) -> None:
    """As the operation."""
    write_largest(x, values, indices, counts, clear=False)
