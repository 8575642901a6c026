"""Signs and two means a block of a gradient with its residual."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._signs import LANES, ROWS, blocks, count_of, elements, store_signs
from gradwire.ops.triton._status import flag_nonfinite
from gradwire.ops.triton._two_means import add_sides, means_of

__all__ = ["two_means_encode_feedback"]


@triton.jit
def _kernel(
    grad: tl.tensor,
    residual: tl.tensor,
    means: tl.tensor,
    codes: tl.tensor,
    status: tl.tensor,
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
        x = tl.load(residual + i, mask=i < n, other=0.0) + tl.load(grad + i, mask=i < n, other=0.0)
        low, high, above = add_sides(x, i < n, low, high, above)
    mu0, mu1 = means_of(low, high, above, count_of(block, n, SIZE), ROWS)
    tl.store(means + 2 * block, mu0, mask=block < count)
    tl.store(means + 2 * block + 1, mu1, mask=block < count)
    if status is not None:
        flag_nonfinite(mu0, status)
        flag_nonfinite(mu1, status)
    for start in range(0, SIZE, LANES):
        i = elements(block, start, SIZE)
        old = tl.load(residual + i, mask=i < n, other=0.0)
        x = old + tl.load(grad + i, mask=i < n, other=0.0)
        store_signs((x >= 0.0) & (i < n), block, start, codes, size, ROWS, SIZE)
        tl.store(residual + i, x - tl.where(x >= 0.0, mu1[:, None], mu0[:, None]), mask=i < n)
        if status is not None:
            tl.store(grad + i, old, mask=i < n)


def two_means_encode_feedback(
    grad: Tensor, residual: Tensor, means: Tensor, codes: Tensor, block: int, status: Tensor | None = None
) -> None:
    """As the operation."""
    n, size = grad.numel(), codes.numel()
    count = triton.cdiv(n, block)
    grid, tensors = (triton.cdiv(count, ROWS),), (grad, residual, means, codes, status)
    launch(_kernel, grid, *tensors, n, count, size, SIZE=block, LANES=LANES, ROWS=ROWS)
