"""Places, block by block, as a bit for each element."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._compact import read_ends
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._sparse import BLOCK, PARTS, span

__all__ = ["bitmap_encode"]


@triton.jit
def _kernel(
    words: tl.tensor, indices: tl.tensor, ends: tl.tensor, n: tl.tensor, PARTS: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    segment = tl.program_id(0)
    begin, end = span(ends, segment)
    for start in range(begin + tl.program_id(1) * BLOCK, end, PARTS * BLOCK):
        j = start + tl.arange(0, BLOCK)
        low = tl.load(indices + j, mask=j < end, other=0).to(tl.int32) & 0xFFFF
        place = segment.to(tl.int64) * 65536 + low
        tl.atomic_or(words + place // 32, 1 << (low % 32), mask=(j < end) & (place < n), sem="relaxed")


def bitmap_encode(indices: Tensor, counts: Tensor, bitmap: Tensor, n: int) -> None:
    """As the operation. The bits are set in whole words: a bitmap may start at any byte."""
    words = torch.zeros(triton.cdiv(n, 32), dtype=torch.int32, device=bitmap.device)
    ends = read_ends(counts, indices.numel())
    launch(_kernel, (counts.numel(), PARTS), words, indices, ends, n, PARTS=PARTS, BLOCK=BLOCK)
    bitmap.copy_(words.view(torch.uint8)[: bitmap.numel()])
