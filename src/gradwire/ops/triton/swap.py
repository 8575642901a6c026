"""Two tensors exchange their contents."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._tile import elements

__all__ = ["swap"]


@triton.jit
def _kernel(a: tl.tensor, b: tl.tensor, n: tl.tensor, BLOCK: tl.constexpr) -> None:
    i = elements(BLOCK)
    inside = i < n
    kept = tl.load(a + i, mask=inside)
    tl.store(a + i, tl.load(b + i, mask=inside), mask=inside)
    tl.store(b + i, kept, mask=inside)


def swap(a: Tensor, b: Tensor) -> None:
    """As the operation."""
    n = a.numel()
    launch(_kernel, (triton.cdiv(n, BLOCK),), a, b, n, BLOCK=BLOCK)
