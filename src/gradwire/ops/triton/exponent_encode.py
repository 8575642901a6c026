"""The marked elements as signed powers of two in 4 bits each."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._compact import PART, before, bits_of, rank
from gradwire.ops.triton._exponents import code_of
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._marks import count_marks
from gradwire.ops.triton._tile import elements

__all__ = ["exponent_encode"]


@triton.jit(do_not_specialize=["top"])
def _kernel(
    x: tl.tensor,
    bitmap: tl.tensor,
    starts: tl.tensor,
    words: tl.tensor,
    size: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    top: tl.int32,
    PART: tl.constexpr,
) -> None:
    bits = bits_of(bitmap, size, n, PART)
    place = tl.load(starts + tl.program_id(0)) + rank(bits)
    code = code_of(tl.load(x + elements(PART), mask=bits, other=0.0), top)
    shift = (place % 8 * 4).to(tl.int32)
    tl.atomic_or(words + place // 8, code << shift, mask=bits & (place < k), sem="relaxed")


def exponent_encode(x: Tensor, bitmap: Tensor, counts: Tensor, codes: Tensor, top: int) -> None:  # noqa: ARG001
    """As the operation. Two parts may share a byte: codes are set in whole words, of which nothing is overwritten."""
    named, size, n = count_marks(bitmap, x.numel()), codes.numel(), x.numel()
    words = torch.zeros(triton.cdiv(size, 4), dtype=torch.int32, device=x.device)
    sizes = bitmap.numel(), n, 2 * size
    launch(_kernel, (named.numel(),), x, bitmap, before(named), words, *sizes, top, PART=PART)
    codes.copy_(words.view(torch.uint8)[:size])
