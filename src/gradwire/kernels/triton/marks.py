"""Marks, a bit for each element, counted in the parts in which they are written and read."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.triton.compact import PART, bits_of
from gradwire.kernels.triton.kernel_launch import launch

__all__ = ["count_marks"]


@triton.jit
def _count(bitmap, named, size, n, PART: tl.constexpr):
    tl.store(named + tl.program_id(0), tl.sum(bits_of(bitmap, size, n, PART).to(tl.int32)))


def room_for_counts(x: Tensor, n: int) -> Tensor:
    """Allocate room for the number of marks in each part of n elements."""
    return torch.empty(triton.cdiv(n, PART), dtype=torch.int32, device=x.device)


def count_marks(bitmap: Tensor, n: int) -> Tensor:
    """Count the set bits of each part."""
    named = room_for_counts(bitmap, n)
    launch(_count, (named.numel(),), bitmap, named, bitmap.numel(), n, PART=PART)
    return named
