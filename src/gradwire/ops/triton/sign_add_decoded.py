"""The sum of signs."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._codes import places
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._signs import unpack_signs

__all__ = ["sign_add_decoded"]


@triton.jit
def _kernel(
    codes: tl.tensor,
    stride: tl.tensor,
    ranks: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    scale: tl.float32,
    BYTES: tl.constexpr,
) -> None:
    byte, i = places(BYTES, 1)
    inside = i < n
    total = tl.load(out + i, mask=inside)
    for _ in range(ranks):
        positive = unpack_signs(tl.load(codes + byte, mask=byte < size))
        # Not plus a negated scale: Triton negates by subtracting from 0, which loses the sign of a zero.
        total = tl.where(positive, total + scale, total - scale)
        codes += stride
    tl.store(out + i, total, mask=inside)


def sign_add_decoded(codes: Tensor, out: Tensor, scale: float) -> None:
    """As the operation."""
    (ranks, size), each = codes.shape, BLOCK // 8
    grid = (triton.cdiv(size, each),)
    launch(_kernel, grid, codes, codes.stride(0), ranks, out, out.numel(), size, float32(scale), BYTES=each)
