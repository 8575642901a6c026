"""A scaled copy in 16 bits."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._tile import elements

__all__ = ["cast_encode"]


@triton.jit
def _kernel(
    x: tl.tensor, out: tl.tensor, n: tl.tensor, scale: tl.float32, BFLOAT: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    i = elements(BLOCK)
    inside = i < n
    scaled = tl.load(x + i, mask=inside) * scale
    if BFLOAT:
        tl.store(out + i, _bfloat_bits(scaled), mask=inside)
    else:
        tl.store(out + i, scaled.to(tl.float16), mask=inside)


@triton.jit
def _bfloat_bits(x: tl.tensor) -> tl.tensor:
    """The bits of x in bfloat16, rounded to nearest even, as int16: the interpreter's own conversion truncates."""
    bits = x.to(tl.uint32, bitcast=True)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    quiet = bits | 0x400000
    return (tl.where(x == x, rounded, quiet) >> 16).to(tl.int16)


def cast_encode(x: Tensor, out: Tensor, scale: float) -> None:
    """As the operation."""
    n, bfloat = x.numel(), out.dtype is torch.bfloat16
    target = out.view(torch.int16) if bfloat else out
    launch(_kernel, (triton.cdiv(n, BLOCK),), x, target, n, float32(scale), BFLOAT=bfloat, BLOCK=BLOCK)
