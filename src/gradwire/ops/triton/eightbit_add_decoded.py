"""The sum of 8-bit payloads."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops import eightbit_add_decoded as operation
from gradwire.ops._checks import float32
from gradwire.ops._eightbit import KINDS, codebook
from gradwire.ops.triton._eightbit import step_of
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._qsgd import blocks, elements, groups, tile

__all__ = ["eightbit_add_decoded"]


@triton.jit
def _kernel(
    scales: tl.tensor,
    scale_stride: tl.tensor,
    codes: tl.tensor,
    code_stride: tl.tensor,
    ranks: tl.tensor,
    out: tl.tensor,
    book: tl.tensor,
    n: tl.tensor,
    count: tl.tensor,
    scale: tl.float32,
    KIND: tl.constexpr,
    GROUPS: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    block = blocks(ROWS)
    i = elements(groups(block, tl.program_id(1) * SPAN, GROUPS, SPAN))
    total = tl.load(out + i, mask=i < n)
    for _ in range(ranks):
        step = step_of(tl.load(scales + block, mask=block < count, other=0.0), KIND) * scale
        code = tl.load(codes + i, mask=i < n, other=0).to(tl.int32)
        total += step[:, None, None] * tl.load(book + code)
        scales += scale_stride
        codes += code_stride
    tl.store(out + i, total, mask=i < n)


def eightbit_add_decoded(scales: Tensor, codes: Tensor, out: Tensor, kind: str, block: int, scale: float) -> None:
    """As the operation; a block of 0 runs its reference, on the GPU."""
    if block == 0:
        operation.reference(scales, codes, out, kind, block, scale)
        return
    (ranks, n), count, part = codes.shape, scales.size(1), tile(block)
    grid = (triton.cdiv(count, part["ROWS"]), triton.cdiv(part["GROUPS"], part["SPAN"]))
    rows = scales, scales.stride(0), codes, codes.stride(0), ranks
    book = codebook(kind, out.device)
    launch(_kernel, grid, *rows, out, book, n, count, float32(scale), KIND=KINDS.index(kind), **part)
