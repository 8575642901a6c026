"""Signs, and the means of each block on both sides of zero."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._signs import LANES, ROWS, blocks, count_of, elements, store_signs
from gradwire.ops.triton._two_means import add_sides, means_of

__all__ = ["two_means_encode"]


@triton.jit
def _kernel(
    x: tl.tensor,
    means: tl.tensor,
    codes: tl.tensor,
    n: tl.tensor,
    count: tl.tensor,
    size: tl.tensor,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    block = blocks(ROWS)
    low, high = tl.zeros((ROWS, LANES), tl.float32), tl.zeros((ROWS, LANES), tl.float32)
    above = tl.zeros((ROWS,), tl.int32)
    for start in range(0, SIZE, LANES):
        i = elements(block, start, SIZE)
        value = tl.load(x + i, mask=i < n, other=0.0)
        store_signs((value >= 0.0) & (i < n), block, start, codes, size, ROWS, SIZE)
        low, high, above = add_sides(value, i < n, low, high, above)
    mu0, mu1 = means_of(low, high, above, count_of(block, n, SIZE), ROWS)
    tl.store(means + 2 * block, mu0, mask=block < count)
    tl.store(means + 2 * block + 1, mu1, mask=block < count)


def two_means_encode(x: Tensor, means: Tensor, codes: Tensor, block: int) -> None:
    """As the operation."""
    count = triton.cdiv(x.numel(), block)
    grid = (triton.cdiv(count, ROWS),)
    launch(_kernel, grid, x, means, codes, x.numel(), count, codes.numel(), SIZE=block, LANES=LANES, ROWS=ROWS)
