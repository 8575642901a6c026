"""The means of a block on both sides of zero."""

import triton
import triton.language as tl

from gradwire.ops.triton._signs import total

__all__ = ["add_sides", "means_of"]


@triton.jit
def add_sides(
    x: tl.tensor, inside: tl.tensor, low: tl.tensor, high: tl.tensor, above: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The sums below zero and of the rest, and how many the rest are, with a tile more."""
    positive = x >= 0.0
    count = tl.sum((positive & inside).to(tl.int32), axis=1)
    return low + tl.where(positive, 0.0, x), high + tl.where(positive, x, 0.0), above + count


@triton.jit
def means_of(
    low: tl.tensor, high: tl.tensor, above: tl.tensor, count: tl.tensor, ROWS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The mean of each side, 0 of nothing."""
    below = count - above
    mu0 = tl.div_rn(total(low, ROWS), tl.maximum(below, 1).to(tl.float32))
    mu1 = tl.div_rn(total(high, ROWS), tl.maximum(above, 1).to(tl.float32))
    return tl.where(below > 0, mu0, 0.0), tl.where(above > 0, mu1, 0.0)
