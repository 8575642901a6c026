"""The sum of 2-bit payloads."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._codes import places, unpack
from gradwire.ops.triton._launch import BLOCK, launch

__all__ = ["twobit_add_decoded"]


@triton.jit
def _kernel(
    codes: tl.tensor,
    stride: tl.tensor,
    ranks: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    step: tl.float32,
    BYTES: tl.constexpr,
) -> None:
    byte, i = places(BYTES, 2)
    inside = i < n
    total = tl.load(out + i, mask=inside)
    for _ in range(ranks):
        code = unpack(tl.load(codes + byte, mask=byte < size), 2)
        total += tl.where(code > 1, (2 * code - 5).to(tl.float32) * step, 0.0)
        codes += stride
    tl.store(out + i, total, mask=inside)


def twobit_add_decoded(codes: Tensor, out: Tensor, threshold: float, scale: float) -> None:
    """As the operation."""
    (ranks, size), each = codes.shape, BLOCK // 4
    step = float32(float32(scale) * float32(threshold))
    grid = (triton.cdiv(size, each),)
    launch(_kernel, grid, codes, codes.stride(0), ranks, out, out.numel(), size, step, BYTES=each)
