"""A bit for each element back to places, block by block."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._compact import PART, before, bits_of, rank, write_counts
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._marks import count_marks
from gradwire.ops.triton._tile import elements

__all__ = ["bitmap_decode"]


@triton.jit
def _write(
    bitmap: tl.tensor,
    starts: tl.tensor,
    indices: tl.tensor,
    size: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    PART: tl.constexpr,
) -> None:
    bits = bits_of(bitmap, size, n, PART)
    place = tl.load(starts + tl.program_id(0)) + rank(bits)
    tl.store(indices + place, elements(PART).to(tl.int16), mask=bits & (place < k))


def bitmap_decode(bitmap: Tensor, indices: Tensor, counts: Tensor, n: int) -> None:
    """As the operation."""
    named, size, k = count_marks(bitmap, n), bitmap.numel(), indices.numel()
    indices.zero_()
    launch(_write, (named.numel(),), bitmap, before(named), indices, size, n, k, PART=PART)
    write_counts(named.cumsum(0).clamp_(max=k), counts)
