"""A bit for each element back to places, block by block."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._compact import PART, before, bits_of, rank, write_counts
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._tile import elements

__all__ = ["bitmap_decode"]


@triton.jit
def _count(bitmap: tl.tensor, named: tl.tensor, size: tl.tensor, n: tl.tensor, PART: tl.constexpr) -> None:
    tl.store(named + tl.program_id(0), tl.sum(bits_of(bitmap, size, n, PART).to(tl.int32)))


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
    parts, size, k = triton.cdiv(n, PART), bitmap.numel(), indices.numel()
    named = torch.empty(parts, dtype=torch.int32, device=bitmap.device)
    launch(_count, (parts,), bitmap, named, size, n, PART=PART)
    indices.zero_()
    launch(_write, (parts,), bitmap, before(named), indices, size, n, k, PART=PART)
    write_counts(named.cumsum(0).clamp_(max=k), counts)
