"""The sum of payloads that are floats."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._tile import elements

__all__ = ["cast_add_decoded"]


@triton.jit
def _kernel(
    payload: tl.tensor,
    stride: tl.tensor,
    ranks: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    scale: tl.float32,
    BFLOAT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    i = elements(BLOCK)
    inside = i < n
    total = tl.load(out + i, mask=inside)
    for _ in range(ranks):
        value = tl.load(payload + i, mask=inside)
        if BFLOAT:
            total += (value.to(tl.int32) << 16).to(tl.float32, bitcast=True) * scale
        else:
            total += value.to(tl.float32) * scale
        payload += stride
    tl.store(out + i, total, mask=inside)


def cast_add_decoded(payloads: Tensor, out: Tensor, scale: float) -> None:
    """As the operation."""
    n, ranks, bfloat = out.numel(), payloads.size(0), payloads.dtype is torch.bfloat16
    # As integers, since the interpreter's own conversion of subnormal bfloat16 is wrong.
    source = payloads.view(torch.int16) if bfloat else payloads
    rows = source, source.stride(0), ranks
    launch(_kernel, (triton.cdiv(n, BLOCK),), *rows, out, n, float32(scale), BFLOAT=bfloat, BLOCK=BLOCK)
