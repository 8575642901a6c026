"""8-bit codes of a tensor with a scale for each block, without a residual."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops import eightbit_encode as operation
from gradwire.ops._eightbit import KINDS, codebook
from gradwire.ops.triton._eightbit import code_of, scale_of
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._qsgd import blocks, groups, load, store, tile

__all__ = ["eightbit_encode"]


@triton.jit
def _kernel(
    x: tl.tensor,
    scales: tl.tensor,
    codes: tl.tensor,
    book: tl.tensor,
    n: tl.tensor,
    count: tl.tensor,
    KIND: tl.constexpr,
    GROUPS: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    block = blocks(ROWS)
    group = groups(block, 0, GROUPS, SPAN)
    values = load(x, group, n)
    norm = scale_of(values)
    for start in range(SPAN, GROUPS, SPAN):
        norm = _larger(norm, scale_of(load(x, groups(block, start, GROUPS, SPAN), n)))
    tl.store(scales + block, norm, mask=block < count)
    # The first part, all of it where blocks are short, is still in registers.
    store(codes, code_of(values, norm, book, KIND).to(tl.uint8), group, n)
    for start in range(SPAN, GROUPS, SPAN):
        group = groups(block, start, GROUPS, SPAN)
        store(codes, code_of(load(x, group, n), norm, book, KIND).to(tl.uint8), group, n)


@triton.jit
def _larger(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """By their bits, so that a NaN is larger than infinity."""
    return tl.maximum(a.to(tl.int32, bitcast=True), b.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


def eightbit_encode(x: Tensor, scales: Tensor, codes: Tensor, kind: str, block: int) -> None:
    """As the operation; a block of 0 runs its reference, on the GPU."""
    if block == 0:
        operation.reference(x, scales, codes, kind, block)
        return
    n, count, part = x.numel(), scales.numel(), tile(block)
    grid = (triton.cdiv(count, part["ROWS"]),)
    launch(_kernel, grid, x, scales, codes, codebook(kind, x.device), n, count, KIND=KINDS.index(kind), **part)
