"""1-bit codes of a tensor, without a residual."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._codes import pack, places
from gradwire.ops.triton._launch import BLOCK, launch

__all__ = ["onebit_encode"]


@triton.jit
def _kernel(
    x: tl.tensor,
    codes: tl.tensor,
    step: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    threshold: tl.float32,
    BYTES: tl.constexpr,
) -> None:
    byte, i = places(BYTES, 1)
    inside = i < n
    if step is not None:
        threshold = tl.load(step) * threshold
    above = tl.load(x + i, mask=inside, other=0.0) > threshold
    tl.store(codes + byte, pack((above & inside).to(tl.int32), 1), mask=byte < size)


def onebit_encode(x: Tensor, codes: Tensor, threshold: float, step: Tensor | None = None) -> None:
    """As the operation."""
    size, each = codes.numel(), BLOCK // 8
    launch(_kernel, (triton.cdiv(size, each),), x, codes, step, x.numel(), size, float32(threshold), BYTES=each)
