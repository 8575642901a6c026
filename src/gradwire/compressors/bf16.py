"""A cast to the upper half of float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradwire.compressors._cast import Cast

__all__ = ["BF16"]


@dataclass(frozen=True)
class BF16(Cast):
    """Send every element in bfloat16: 16 bits an element, 8 of them significant, float32's range.

    C(x) = round(x) to bfloat16: |C(x) - x| <= 2^-8 |x| for |x| >= 2^-126, hence delta = 1 - 2^-16.

    Only elements above 3.38e38 round to infinity; with feedback such a step is reported as non-finite.

    Example:
        >>> BF16().decompress(BF16().compress(torch.tensor([1.0, 0.1, 1e-9])), (3,)).tolist()
        [1.0, 0.10009765625, 9.968061931431293e-10]

    Source:
        D. Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019.
    """

    name = "bf16"
    family = "cast"
    reference = "D. Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, 2019"
    dtype = torch.bfloat16

    @property
    def contraction(self) -> bool:
        return True

    def delta(self, n: int) -> float:
        return 1.0 - 2.0**-16
