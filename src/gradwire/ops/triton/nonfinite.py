"""Whether a tensor holds a value that is infinite or not a number."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._status import flag_nonfinite
from gradwire.ops.triton._tile import elements

__all__ = ["nonfinite"]


@triton.jit
def _kernel(x: tl.tensor, status: tl.tensor, n: tl.tensor, BLOCK: tl.constexpr) -> None:
    i = elements(BLOCK)
    flag_nonfinite(tl.load(x + i, mask=i < n, other=0.0), status)


def nonfinite(x: Tensor, status: Tensor) -> None:
    """As the operation."""
    n = x.numel()
    launch(_kernel, (triton.cdiv(n, BLOCK),), x, status, n, BLOCK=BLOCK)
