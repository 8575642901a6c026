"""A cast of a gradient and what was not sent before; the residual keeps what rounding took."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._bfloat import bfloat_bits
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._status import flag_nonfinite
from gradwire.ops.triton._tile import elements

__all__ = ["cast_encode_feedback"]


@triton.jit
def _kernel(
    grad: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    status: tl.tensor,
    n: tl.tensor,
    BFLOAT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    i = elements(BLOCK)
    inside = i < n
    old = tl.load(residual + i, mask=inside, other=0.0)
    x = old + tl.load(grad + i, mask=inside, other=0.0)
    if BFLOAT:
        bits = bfloat_bits(x)
        code, value = bits, (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        code = x.to(out.dtype.element_ty)
        value = code.to(tl.float32)
    tl.store(out + i, code, mask=inside)
    tl.store(residual + i, x - value, mask=inside)
    if status is not None:
        tl.store(grad + i, old, mask=inside)
        flag_nonfinite(x - value, status)


def cast_encode_feedback(grad: Tensor, residual: Tensor, out: Tensor, status: Tensor | None = None) -> None:
    """As the operation."""
    n, bfloat = grad.numel(), out.dtype is torch.bfloat16
    target = out.view(torch.int16) if bfloat else out
    launch(_kernel, (triton.cdiv(n, BLOCK),), grad, residual, target, status, n, BFLOAT=bfloat, BLOCK=BLOCK)
