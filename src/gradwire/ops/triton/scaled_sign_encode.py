"""Signs, and the mean magnitude of each block."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._signs import LANES, ROWS, blocks, count_of, elements, store_signs, total

__all__ = ["scaled_sign_encode"]


@triton.jit
def _kernel(
    x: tl.tensor,
    scales: tl.tensor,
    codes: tl.tensor,
    n: tl.tensor,
    count: tl.tensor,
    size: tl.tensor,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    block = blocks(ROWS)
    lanes = tl.zeros((ROWS, LANES), tl.float32)
    for start in range(0, SIZE, LANES):
        i = elements(block, start, SIZE)
        value = tl.load(x + i, mask=i < n, other=0.0)
        store_signs((value >= 0.0) & (i < n), block, start, codes, size, ROWS, SIZE)
        lanes += tl.abs(value)
    scale = tl.div_rn(total(lanes, ROWS), count_of(block, n, SIZE).to(tl.float32))
    tl.store(scales + block, scale, mask=block < count)


def scaled_sign_encode(x: Tensor, scales: Tensor, codes: Tensor, block: int) -> None:
    """As the operation."""
    count = triton.cdiv(x.numel(), block)
    grid = (triton.cdiv(count, ROWS),)
    launch(_kernel, grid, x, scales, codes, x.numel(), count, codes.numel(), SIZE=block, LANES=LANES, ROWS=ROWS)
