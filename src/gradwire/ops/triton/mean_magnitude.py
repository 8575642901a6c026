"""The mean magnitude of a tensor."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._signs import SUM_BLOCK, mean_of_sums
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._signs import LANES, ROWS, blocks, elements, total

__all__ = ["mean_magnitude"]


@triton.jit
def _kernel(
    x: tl.tensor,
    residual: tl.tensor,
    sums: tl.tensor,
    n: tl.tensor,
    count: tl.tensor,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    block = blocks(ROWS)
    lanes = tl.zeros((ROWS, LANES), tl.float32)
    for start in range(0, SIZE, LANES):
        i = elements(block, start, SIZE)
        value = tl.load(x + i, mask=i < n, other=0.0)
        if residual is not None:
            value += tl.load(residual + i, mask=i < n, other=0.0)
        lanes += tl.abs(value)
    tl.store(sums + block, total(lanes, ROWS), mask=block < count)


def mean_magnitude(x: Tensor, mean: Tensor, residual: Tensor | None = None) -> None:
    """As the operation."""
    n = x.numel()
    sums = torch.empty(triton.cdiv(n, SUM_BLOCK), device=x.device)
    grid = (triton.cdiv(sums.numel(), ROWS),)
    launch(_kernel, grid, x, residual, sums, n, sums.numel(), SIZE=SUM_BLOCK, LANES=LANES, ROWS=ROWS)
    mean.copy_(mean_of_sums(sums, n))
