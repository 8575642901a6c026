"""The sum of QSGD payloads."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops import qsgd_add_decoded as operation
from gradwire.ops._checks import float32
from gradwire.ops._qsgd import top_of
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._qsgd import blocks, decode, elements, groups, step_of, tile

__all__ = ["qsgd_add_decoded"]


@triton.jit
def _kernel(
    norms: tl.tensor,
    norm_stride: tl.tensor,
    codes: tl.tensor,
    code_stride: tl.tensor,
    ranks: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    count: tl.tensor,
    size: tl.tensor,
    scale: tl.float32,
    BITS: tl.constexpr,
    TOP: tl.constexpr,
    GROUPS: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    block = blocks(ROWS)
    group = groups(block, tl.program_id(1) * SPAN, GROUPS, SPAN)
    i = elements(group)
    total = tl.load(out + i, mask=i < n)
    for _ in range(ranks):
        step = step_of(tl.load(norms + block, mask=block < count, other=0.0), TOP) * scale
        total += step[:, None, None] * decode(codes, group, size, BITS)
        norms += norm_stride
        codes += code_stride
    tl.store(out + i, total, mask=i < n)


def qsgd_add_decoded(
    norms: Tensor,
    codes: Tensor,
    out: Tensor,
    bits: int,
    block: int,
    scale: float,
    levels: int = 0,
    grid: str = "uniform",
) -> None:
    """As the operation; the grid "powers" runs its reference, on the GPU."""
    if grid == "powers":
        operation.reference(norms, codes, out, bits, block, scale, levels, grid)
        return
    (ranks, size), count, part = codes.shape, norms.size(1), tile(block)
    programs = (triton.cdiv(count, part["ROWS"]), triton.cdiv(part["GROUPS"], part["SPAN"]))
    rows = norms, norms.stride(0), codes, codes.stride(0), ranks
    form = {"BITS": bits, "TOP": top_of(bits, levels), **part}
    launch(_kernel, programs, *rows, out, out.numel(), count, size, float32(scale), **form)
