"""The sum of signs that have a scale for each block."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._codes import places
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._signs import unpack_signs

__all__ = ["scaled_sign_add_decoded"]


@triton.jit
def _kernel(
    scales: tl.tensor,
    scales_stride: tl.tensor,
    codes: tl.tensor,
    codes_stride: tl.tensor,
    ranks: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    scale: tl.float32,
    SIZE: tl.constexpr,
    BYTES: tl.constexpr,
) -> None:
    byte, i = places(BYTES, 1)
    block = byte // (SIZE // 8)
    total = tl.load(out + i, mask=i < n)
    for _ in range(ranks):
        level = tl.load(scales + block, mask=byte < size, other=0.0) * scale
        positive = unpack_signs(tl.load(codes + byte, mask=byte < size, other=0))
        # Not plus a negated level: Triton negates by subtracting from 0, which loses the sign of a zero.
        total = tl.where(positive, total + level[:, None], total - level[:, None])
        scales += scales_stride
        codes += codes_stride
    tl.store(out + i, total, mask=i < n)


def scaled_sign_add_decoded(scales: Tensor, codes: Tensor, out: Tensor, block: int, scale: float) -> None:
    """As the operation."""
    (ranks, size), each = codes.shape, BLOCK // 8
    rows, grid = (scales, scales.stride(0), codes, codes.stride(0)), (triton.cdiv(size, each),)
    launch(_kernel, grid, *rows, ranks, out, out.numel(), size, float32(scale), SIZE=block, BYTES=each)
