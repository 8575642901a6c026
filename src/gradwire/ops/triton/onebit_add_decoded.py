"""The sum of 1-bit payloads."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._codes import places, unpack
from gradwire.ops.triton._launch import BLOCK, launch

__all__ = ["onebit_add_decoded"]


@triton.jit
def _kernel(
    codes: tl.tensor,
    stride: tl.tensor,
    steps: tl.tensor,
    steps_stride: tl.tensor,
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
        bit = unpack(tl.load(codes + byte, mask=byte < size), 1)
        distance = scale
        if steps is not None:
            distance = tl.load(steps) * scale
            steps += steps_stride
        # Not plus a negated distance: Triton negates by subtracting from 0, which loses the sign of a zero.
        total = tl.where(bit != 0, total + distance, total - distance)
        codes += stride
    tl.store(out + i, total, mask=inside)


def onebit_add_decoded(codes: Tensor, out: Tensor, scale: float, steps: Tensor | None = None) -> None:
    """As the operation."""
    (ranks, size), each = codes.shape, BLOCK // 8
    grid, rows = (triton.cdiv(size, each),), (codes, codes.stride(0), steps, 0 if steps is None else steps.stride(0))
    launch(_kernel, grid, *rows, ranks, out, out.numel(), size, float32(scale), BYTES=each)
