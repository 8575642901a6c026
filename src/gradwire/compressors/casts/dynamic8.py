"""Dettmers' dynamic tree: eight bits that span seven decades."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.compressors.casts._eightbit import EightBit

__all__ = ["Dynamic8"]


@dataclass(frozen=True)
class Dynamic8(EightBit):
    """Divide by the largest magnitude S and send the nearest of 256 values of seven decades: 8 bits an element.

    C(x) = S T[c], c the code for which |T[c] - x / S| is least. T holds 0, 1, and in the decade below 10^-e, e = 0 to
    6, the middles of 2^(6 - e) equal parts with both signs: bitsandbytes' signed dynamic map, value for value.

    |C(x) - x| <= 0.00704 S; from 0.1 S to S an element is off by less than 7 % of itself, and each decade below has
    half as many values. There is no -1: the largest negative element comes out as -0.993 S.

    Example:
        >>> import torch
        >>> code = Dynamic8()
        >>> code.layout((17,)).nbytes
        21
        >>> [round(x, 4) for x in code.decompress(code.compress(torch.tensor([2.0, -2.0, 0.0, 2e-6])), (4,)).tolist()]
        [2.0, -1.9859, 0.0, 0.0]

    Source:
        T. Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016.
    """

    name = "dynamic8"
    fine = True
    reference = "T. Dettmers, 8-Bit Approximations for Parallelism in Deep Learning, ICLR 2016"
    codebook = "dynamic"

    @property
    def span(self) -> int:
        return 0
