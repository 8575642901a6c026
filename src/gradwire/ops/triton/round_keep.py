"""Levels of a compensated gradient whose norm is known; it becomes the new residual."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._qsgd import step_of
from gradwire.ops.triton._round import GROUPS, round_tile

__all__ = ["round_keep"]


@triton.jit(do_not_specialize=["key", "step"])
def _kernel(
    residual: tl.tensor,
    norm: tl.tensor,
    codes: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    key: tl.int64,
    step: tl.int64,
    shrink: tl.float32,
    BITS: tl.constexpr,
    TOP: tl.constexpr,
    GROUPS: tl.constexpr,
) -> None:
    i, x, q, given = round_tile(residual, norm, codes, n, size, key, step, BITS, TOP, GROUPS)
    distance = (step_of(given, TOP) * shrink)[:, None, None]
    tl.store(residual + i, x - distance * q.to(tl.float32), mask=i < n)


def round_keep(
    residual: Tensor, norm: Tensor, codes: Tensor, bits: int, levels: int, shrink: float, key: int, step: int
) -> None:
    """As the operation."""
    n, programs = residual.numel(), (triton.cdiv(residual.numel(), 8 * GROUPS),)
    stream = key, step, float32(shrink)
    launch(_kernel, programs, residual, norm, codes, n, codes.numel(), *stream, BITS=bits, TOP=levels, GROUPS=GROUPS)
