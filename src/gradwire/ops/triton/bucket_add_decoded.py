"""The sum of the levels of buckets."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._tile import elements

__all__ = ["bucket_add_decoded"]


@triton.jit
def _kernel(
    codes: tl.tensor,
    code_stride: tl.tensor,
    levels: tl.tensor,
    level_stride: tl.tensor,
    ranks: tl.tensor,
    last: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    scale: tl.float32,
    BLOCK: tl.constexpr,
) -> None:
    i = elements(BLOCK)
    total = tl.load(out + i, mask=i < n)
    for _ in range(ranks):
        code = tl.load(codes + i, mask=i < n, other=0).to(tl.int32)
        total += tl.load(levels + tl.minimum(code, last)) * scale
        codes += code_stride
        levels += level_stride
    tl.store(out + i, total, mask=i < n)


def bucket_add_decoded(codes: Tensor, levels: Tensor, out: Tensor, scale: float) -> None:
    """As the operation."""
    ranks, n = codes.shape
    rows = codes, codes.stride(0), levels, levels.stride(0), ranks, levels.size(1) - 1
    launch(_kernel, (triton.cdiv(n, BLOCK),), *rows, out, n, float32(scale), BLOCK=BLOCK)
