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
    steps: tl.tensor,
    steps_stride: tl.tensor,
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
        own = step
        if steps is not None:
            own = tl.load(steps) * step
            steps += steps_stride
        total += tl.where(code > 1, (2 * code - 5).to(tl.float32) * own, 0.0)
        codes += stride
    tl.store(out + i, total, mask=inside)


def twobit_add_decoded(codes: Tensor, out: Tensor, threshold: float, scale: float, steps: Tensor | None = None) -> None:
    """As the operation."""
    (ranks, size), each = codes.shape, BLOCK // 4
    step = float32(float32(scale) * float32(threshold))
    grid, rows = (triton.cdiv(size, each),), (codes, codes.stride(0), steps, 0 if steps is None else steps.stride(0))
    launch(_kernel, grid, *rows, ranks, out, out.numel(), size, step, BYTES=each)
