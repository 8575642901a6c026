"""A scaled copy, in 16 bits as a rule."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._bfloat import bfloat_bits
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
        tl.store(out + i, bfloat_bits(scaled), mask=inside)
    else:
        tl.store(out + i, scaled.to(out.dtype.element_ty), mask=inside)


def cast_encode(x: Tensor, out: Tensor, scale: float) -> None:
    """As the operation."""
    n, bfloat = x.numel(), out.dtype is torch.bfloat16
    target = out.view(torch.int16) if bfloat else out
    launch(_kernel, (triton.cdiv(n, BLOCK),), x, target, n, float32(scale), BFLOAT=bfloat, BLOCK=BLOCK)
