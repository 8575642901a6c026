"""No compression: the dense gradient, as the reference to compare with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradwire.compressors.casts._float_cast import Cast

__all__ = ["Identity"]


@dataclass(frozen=True)
class Identity(Cast):
    """Send every element in float32: C(x) = x, 32 bits an element.

    Example:
        >>> Identity().decompress(Identity().compress(torch.tensor([1.5, -2.0])), (2,)).tolist()
        [1.5, -2.0]

    Source:
        None: it is what a data-parallel run does without compression.
    """

    name = "none"
    plain_dtype = torch.float32
    fine = True
    family = "cast"
    reference = "uncompressed data-parallel training"
    unbiased = True
    dtype = torch.float32
    headroom = 1.0

    def sums_in(self, dtype: torch.dtype) -> bool:
        """Return True for any dtype: 16-bit gradients are not widened to be sent."""
        return dtype.is_floating_point

    def delta(self, n: int) -> float:
        return 1.0

    def omega(self, n: int) -> float:
        return 0.0
