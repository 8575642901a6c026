"""Signs and mean magnitudes of a gradient with its residual."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._signs import LANES, ROWS, blocks, count_of, elements, store_signs, total
from gradwire.ops.triton._status import flag_nonfinite

__all__ = ["scaled_sign_encode_feedback"]


@triton.jit
def _kernel(
    grad: tl.tensor,
    residual: tl.tensor,
    scales: tl.tensor,
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
    lanes = tl.zeros((ROWS, LANES), tl.float32)
    for start in range(0, SIZE, LANES):
        i = elements(block, start, SIZE)
        x = tl.load(residual + i, mask=i < n, other=0.0) + tl.load(grad + i, mask=i < n, other=0.0)
        lanes += tl.abs(x)
    scale = tl.div_rn(total(lanes, ROWS), count_of(block, n, SIZE).to(tl.float32))
    tl.store(scales + block, scale, mask=block < count)
    if status is not None:
        flag_nonfinite(scale, status)
    for start in range(0, SIZE, LANES):
        i = elements(block, start, SIZE)
        old = tl.load(residual + i, mask=i < n, other=0.0)
        x = old + tl.load(grad + i, mask=i < n, other=0.0)
        store_signs((x >= 0.0) & (i < n), block, start, codes, size, ROWS, SIZE)
        tl.store(residual + i, x - tl.where(x >= 0.0, scale[:, None], -scale[:, None]), mask=i < n)
        if status is not None:
            tl.store(grad + i, old, mask=i < n)


def scaled_sign_encode_feedback(
    grad: Tensor, residual: Tensor, scales: Tensor, codes: Tensor, block: int, status: Tensor | None = None
) -> None:
    """As the operation."""
    n, size = grad.numel(), codes.numel()
    count = triton.cdiv(n, block)
    grid, tensors = (triton.cdiv(count, ROWS),), (grad, residual, scales, codes, status)
    launch(_kernel, grid, *tensors, n, count, size, SIZE=block, LANES=LANES, ROWS=ROWS)
