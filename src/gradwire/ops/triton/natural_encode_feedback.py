"""Powers of two of a gradient and what was not sent before; the residual keeps the rounding errors."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._eightbit import load, store
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._natural import base_of, carries, code_of, value_of
from gradwire.ops.triton._qsgd import blocks, groups, largest, tile
from gradwire.ops.triton._status import flag_nonfinite

__all__ = ["natural_encode_feedback"]


@triton.jit(do_not_specialize=["key", "step"])
def _kernel(
    grad: tl.tensor,
    residual: tl.tensor,
    bases: tl.tensor,
    codes: tl.tensor,
    status: tl.tensor,
    n: tl.tensor,
    count: tl.tensor,
    key: tl.int64,
    step: tl.int64,
    RANDOM: tl.constexpr,
    GROUPS: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    block = blocks(ROWS)
    group = groups(block, 0, GROUPS, SPAN)
    magnitude = largest(load(residual, group, n) + load(grad, group, n))
    for start in range(SPAN, GROUPS, SPAN):
        group = groups(block, start, GROUPS, SPAN)
        magnitude = tl.maximum(magnitude, largest(load(residual, group, n) + load(grad, group, n)))
    base = base_of(magnitude)
    tl.store(bases + block, base.to(tl.uint8), mask=block < count)
    if status is not None:
        flag_nonfinite(magnitude.to(tl.float32, bitcast=True), status)
    for start in range(0, GROUPS, SPAN):
        group = groups(block, start, GROUPS, SPAN)
        old = load(residual, group, n)
        x = old + load(grad, group, n)
        code = code_of(x, base, carries(group, key, step, RANDOM))
        store(codes, code.to(tl.uint8), group, n)
        kept = x - value_of(code, base)
        store(residual, tl.where(base[:, None, None] == 255, float("nan"), kept), group, n)
        if status is not None:
            store(grad, old, group, n)


def natural_encode_feedback(
    grad: Tensor,
    residual: Tensor,
    bases: Tensor,
    codes: Tensor,
    rounding: str,
    block: int,
    key: int,
    step: int,
    status: Tensor | None = None,
) -> None:
    """As the operation."""
    n, count, part = grad.numel(), bases.numel(), tile(block)
    grid = (triton.cdiv(count, part["ROWS"]),)
    tensors = grad, residual, bases, codes, status
    launch(_kernel, grid, *tensors, n, count, key, step, RANDOM=int(rounding == "random"), **part)
