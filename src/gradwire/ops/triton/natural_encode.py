"""Powers of two of a tensor, without a residual."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._eightbit import load, store
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._natural import base_of, carries, code_of
from gradwire.ops.triton._qsgd import blocks, groups, largest, tile

__all__ = ["natural_encode"]


@triton.jit(do_not_specialize=["key", "step"])
def _kernel(
    x: tl.tensor,
    bases: tl.tensor,
    codes: tl.tensor,
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
    magnitude = largest(load(x, groups(block, 0, GROUPS, SPAN), n))
    for start in range(SPAN, GROUPS, SPAN):
        magnitude = tl.maximum(magnitude, largest(load(x, groups(block, start, GROUPS, SPAN), n)))
    base = base_of(magnitude)
    tl.store(bases + block, base.to(tl.uint8), mask=block < count)
    for start in range(0, GROUPS, SPAN):
        group = groups(block, start, GROUPS, SPAN)
        code = code_of(load(x, group, n), base, carries(group, key, step, RANDOM))
        store(codes, code.to(tl.uint8), group, n)


def natural_encode(x: Tensor, bases: Tensor, codes: Tensor, rounding: str, block: int, key: int, step: int) -> None:
    """As the operation."""
    n, count, part = x.numel(), bases.numel(), tile(block)
    grid = (triton.cdiv(count, part["ROWS"]),)
    launch(_kernel, grid, x, bases, codes, n, count, key, step, RANDOM=int(rounding == "random"), **part)
