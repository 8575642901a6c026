"""QSGD codes of a tensor, without a residual."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops import qsgd_encode as operation
from gradwire.ops._qsgd import top_of
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._qsgd import blocks, elements, encode, groups, largest, norm_of, tile

__all__ = ["qsgd_encode"]


@triton.jit
def _load(x: tl.tensor, group: tl.tensor, n: tl.tensor) -> tl.tensor:
    i = elements(group)
    return tl.load(x + i, mask=i < n, other=0.0)


@triton.jit(do_not_specialize=["key", "step"])
def _kernel(
    x: tl.tensor,
    norms: tl.tensor,
    codes: tl.tensor,
    n: tl.tensor,
    count: tl.tensor,
    size: tl.tensor,
    key: tl.int64,
    step: tl.int64,
    BITS: tl.constexpr,
    TOP: tl.constexpr,
    GROUPS: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    block = blocks(ROWS)
    group = groups(block, 0, GROUPS, SPAN)
    values = _load(x, group, n)
    magnitude = largest(values)
    for start in range(SPAN, GROUPS, SPAN):
        magnitude = tl.maximum(magnitude, largest(_load(x, groups(block, start, GROUPS, SPAN), n)))
    norm = norm_of(magnitude)
    tl.store(norms + block, norm, mask=block < count)
    # The first part, all of it where blocks are short, is still in registers.
    encode(values, group, norm, codes, size, key, step, BITS, TOP)
    for start in range(SPAN, GROUPS, SPAN):
        group = groups(block, start, GROUPS, SPAN)
        encode(_load(x, group, n), group, norm, codes, size, key, step, BITS, TOP)


def qsgd_encode(
    x: Tensor,
    norms: Tensor,
    codes: Tensor,
    bits: int,
    block: int,
    norm: str,
    key: int,
    step: int,
    levels: int = 0,
    grid: str = "uniform",
) -> None:
    """As the operation; norm "l2" and the grid "powers" run its reference, on the GPU."""
    if norm == "l2" or grid == "powers":
        operation.reference(x, norms, codes, bits, block, norm, key, step, levels, grid)
        return
    n, count, size, part = x.numel(), norms.numel(), codes.numel(), tile(block)
    form = {"BITS": bits, "TOP": top_of(bits, levels), **part}
    programs = (triton.cdiv(count, part["ROWS"]),)
    launch(_kernel, programs, x, norms, codes, n, count, size, key, step, **form)
