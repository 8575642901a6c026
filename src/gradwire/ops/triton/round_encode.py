"""Levels of a tensor whose norm is known."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._round import GROUPS, round_tile

__all__ = ["round_encode"]


@triton.jit(do_not_specialize=["key", "step"])
def _kernel(
    x: tl.tensor,
    norm: tl.tensor,
    codes: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    key: tl.int64,
    step: tl.int64,
    BITS: tl.constexpr,
    TOP: tl.constexpr,
    GROUPS: tl.constexpr,
) -> None:
    round_tile(x, norm, codes, n, size, key, step, BITS, TOP, GROUPS)


def round_encode(x: Tensor, norm: Tensor, codes: Tensor, bits: int, levels: int, key: int, step: int) -> None:
    """As the operation."""
    n, programs = x.numel(), (triton.cdiv(x.numel(), 8 * GROUPS),)
    launch(_kernel, programs, x, norm, codes, n, codes.numel(), key, step, BITS=bits, TOP=levels, GROUPS=GROUPS)
