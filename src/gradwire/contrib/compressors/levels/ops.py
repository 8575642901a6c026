"""Sums of levels in bytes, which ranks add up on their way."""

import math
from typing import Annotated

import torch
from torch import Tensor

from gradwire.kernels.arguments import Flat, Where, Written
from gradwire.kernels.base import declared
from gradwire.kernels.float32 import float32

__all__ = [
    "sum_words",
    "sums_add_decoded",
    "sums_encode",
]

SummedLevels = Annotated[int, Where("1 <= levels <= 127", "an integer from 1 to 127")]


def sum_words(n: int) -> int:
    """The number of words that hold the sums of ``n`` levels, and count the ranks."""
    return -(-n // 4) + min(n, 1)


@declared
def sums_encode(
    own: Annotated[Tensor, Flat(torch.uint8, "n")],
    codes: Annotated[Tensor, Flat(torch.int32, "sum_words(n)", written=True)],
    levels: SummedLevels,
) -> None:
    """Write levels in the form in which ranks add them up: byte i is q_i + s, and the last word, 1, counts the ranks.

    Args:
        own: uint8, n elements: this rank's levels q, from -s to s, in two's complement.
        codes: int32, ceil(n / 4) words of four bytes, and one more; what lies beyond the last level is 0.
        levels: s, from 1 to 127.

    >>> codes = torch.empty(2, dtype=torch.int32)
    >>> sums_encode(torch.tensor([253, 0, 3], dtype=torch.uint8), codes, levels=3)
    >>> codes[:1].view(torch.uint8).tolist(), codes[1].item()
    ([0, 3, 6, 0], 1)
    """
    codes.zero_()
    torch.add(own, levels, out=codes.view(torch.uint8)[: own.numel()])
    codes[-1:].fill_(1)


@declared
def sums_add_decoded(
    norm: Annotated[Tensor, Flat(torch.float32, "min(n, 1)")],
    codes: Annotated[Tensor, Flat(torch.int32, "sum_words(n)")],
    out: Written,
    levels: SummedLevels,
    scale: float,
) -> None:
    """Add the mean of levels that W ranks added up: out = out + (scale N / (s W)) (sum - s W).

    Args:
        norm: float32, 1 element: N, what the highest level stands for. Empty if n = 0.
        codes: int32, ceil(n / 4) + 1 words: the sums of what ``sums_encode`` wrote on each rank. Where the sums of as
            many ranks as the last word counts do not fit into a byte, everything becomes NaN.
        out: float32, n elements.
        levels: s, from 1 to 127.
        scale: factor of what is added.

    >>> out, sums = torch.zeros(3), torch.tensor([0, 6, 11, 0, 2, 0, 0, 0], dtype=torch.uint8)
    >>> sums_add_decoded(torch.tensor([6.0]), sums.view(torch.int32), out, levels=3, scale=1.0)
    >>> out.tolist()
    [-6.0, 0.0, 5.0]
    """
    sums, ranks = codes.view(torch.uint8)[: out.numel()], codes[-1:]
    fits = (ranks > 0) & (ranks <= 255 // (2 * levels))
    bias = levels * ranks
    step = float32(scale) * (norm / bias.masked_fill(~fits, 1)).masked_fill(~fits, math.nan)
    out += step * (sums.int() - bias)
