"""Tiles of (blocks, groups, 8 elements): a group lies in one block, and its codes of any width start at a byte."""

import triton
import triton.language as tl

from gradwire.kernels.triton.kernel_launch import BLOCK

__all__ = ["elements", "groups", "largest", "load", "norm_of", "store", "tile", "with_residual"]

_NOWHERE = tl.constexpr(2**40)  # the group of what a tile holds beyond the end of its block: beyond every tensor
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_TINY = tl.constexpr(2.0**-120)


def tile(block: int) -> dict[str, int]:
    """The tile of a program: several whole blocks, or a part of one."""
    span = min(triton.next_power_of_2(block // 8), BLOCK // 8)
    return {"GROUPS": block // 8, "SPAN": span, "ROWS": BLOCK // 8 // span}


@triton.jit
def groups(block, start, GROUPS: tl.constexpr, SPAN: tl.constexpr):
    """The indices of the groups from ``start`` on in each block: (ROWS, SPAN)."""
    column = (start + tl.arange(0, SPAN))[None, :]
    return tl.where(column < GROUPS, block[:, None] * GROUPS + column, _NOWHERE)


@triton.jit
def elements(group):
    """The indices of the elements of each group: (ROWS, SPAN, 8)."""
    return group[:, :, None] * 8 + tl.arange(0, 8)[None, None, :]


@triton.jit
def load(x, group, n):
    """Load the elements of a tile, 0 beyond the end."""
    i = elements(group)
    return tl.load(x + i, mask=i < n, other=0.0)


@triton.jit
def with_residual(grad, residual, group, n):
    """The old residual and the sum to encode; without a residual both are the gradient."""
    old = load(grad, group, n)
    x = old
    if residual is not None:
        old = load(residual, group, n)
        x = old + x
    return old, x


@triton.jit
def store(x, values, group, n):
    """Write the elements of a tile."""
    i = elements(group)
    tl.store(x + i, values, mask=i < n)


@triton.jit
def largest(x):
    """The largest magnitude in each block, as the integer of its bits: a NaN is larger than infinity."""
    magnitude = x.to(tl.int32, bitcast=True) & _MAGNITUDE
    return tl.max(tl.max(magnitude, axis=2), axis=1)


@triton.jit
def norm_of(magnitude):
    """Compute the norm of each block from its largest magnitude."""
    norm = magnitude.to(tl.float32, bitcast=True)
    return tl.where(norm < _TINY, 0.0, norm)
