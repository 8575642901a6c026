"""The sum of payloads of powers of two."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._natural import value_of
from gradwire.ops.triton._qsgd import blocks, elements, groups, tile

__all__ = ["natural_add_decoded"]


@triton.jit
def _kernel(
    bases: tl.tensor,
    base_stride: tl.tensor,
    codes: tl.tensor,
    code_stride: tl.tensor,
    ranks: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    count: tl.tensor,
    scale: tl.float32,
    GROUPS: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    block = blocks(ROWS)
    i = elements(groups(block, tl.program_id(1) * SPAN, GROUPS, SPAN))
    total = tl.load(out + i, mask=i < n)
    for _ in range(ranks):
        base = tl.load(bases + block, mask=block < count, other=0).to(tl.int32)
        code = tl.load(codes + i, mask=i < n, other=0).to(tl.int32)
        factor = tl.where(base == 255, float("nan"), scale)
        total += factor[:, None, None] * value_of(code, base)
        bases += base_stride
        codes += code_stride
    tl.store(out + i, total, mask=i < n)


def natural_add_decoded(bases: Tensor, codes: Tensor, out: Tensor, block: int, scale: float) -> None:
    """As the operation."""
    (ranks, n), count, part = codes.shape, bases.size(1), tile(block)
    grid = (triton.cdiv(count, part["ROWS"]), triton.cdiv(part["GROUPS"], part["SPAN"]))
    rows = bases, bases.stride(0), codes, codes.stride(0), ranks
    launch(_kernel, grid, *rows, out, n, count, float32(scale), **part)
