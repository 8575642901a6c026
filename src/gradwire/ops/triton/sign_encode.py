"""The sign of every element in a bit."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._codes import places
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._signs import pack_signs

__all__ = ["sign_encode"]


@triton.jit
def _kernel(x: tl.tensor, codes: tl.tensor, n: tl.tensor, size: tl.tensor, BYTES: tl.constexpr) -> None:
    byte, i = places(BYTES, 1)
    inside = i < n
    positive = tl.load(x + i, mask=inside, other=0.0) >= 0.0
    tl.store(codes + byte, pack_signs(positive & inside), mask=byte < size)


def sign_encode(x: Tensor, codes: Tensor) -> None:
    """As the operation."""
    size, each = codes.numel(), BLOCK // 8
    launch(_kernel, (triton.cdiv(size, each),), x, codes, x.numel(), size, BYTES=each)
