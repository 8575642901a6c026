"""The sum of sparse payloads."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._compact import read_ends
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._sparse import BLOCK, PARTS, span

__all__ = ["sparse_add_decoded"]


@triton.jit
def _kernel(
    out: tl.tensor,
    values: tl.tensor,
    indices: tl.tensor,
    ends: tl.tensor,
    n: tl.tensor,
    scale: tl.float32,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    segment = tl.program_id(0)
    begin, end = span(ends, segment)
    for start in range(begin + tl.program_id(1) * BLOCK, end, PARTS * BLOCK):
        j = start + tl.arange(0, BLOCK)
        low = tl.load(indices + j, mask=j < end, other=0).to(tl.int32) & 0xFFFF
        place = segment.to(tl.int64) * 65536 + low
        inside = (j < end) & (place < n)
        scaled = tl.load(values + j, mask=inside) * scale
        tl.store(out + place, tl.load(out + place, mask=inside) + scaled, mask=inside)


def sparse_add_decoded(values: Tensor, indices: Tensor, counts: Tensor, out: Tensor, scale: float) -> None:
    """As the operation; where a rank names an element twice, which no encoder does, only one of the two may be added.

    One launch for each rank keeps their order. Atomic additions would not do: a GPU flushes subnormals in them.
    """
    grid, n, factor = (counts.size(1), PARTS), out.numel(), float32(scale)
    for *rank, each in zip(values, indices, counts, strict=True):
        launch(_kernel, grid, out, *rank, read_ends(each, values.size(1)), n, factor, PARTS=PARTS, BLOCK=BLOCK)
