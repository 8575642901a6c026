"""The k-th largest magnitude, by its bits from the highest on: three histograms, and nothing is sorted or copied."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._launch import BLOCK, launch

__all__ = ["least_of", "magnitudes"]

_DIGITS = ((20, 11), (10, 10), (0, 10))  # shift and width of each digit of the 31 bits
_PROGRAMS = 1024  # enough for any GPU; each adds its own histogram to the common one

_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def magnitudes(x: tl.tensor, i: tl.tensor, n: tl.tensor) -> tl.tensor:
    """The magnitudes at ``i`` as the integers of their bits, so that a NaN is larger than infinity; -1 from n on."""
    bits = tl.load(x + i, mask=i < n, other=0.0).to(tl.int32, bitcast=True)
    return tl.where(i < n, bits & _MAGNITUDE, -1)


@triton.jit
def _kernel(
    x: tl.tensor,
    prefix: tl.tensor,
    table: tl.tensor,
    n: tl.tensor,
    stride: tl.tensor,
    SHIFT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    found = tl.load(prefix)
    counts = tl.zeros((1 << WIDTH,), tl.int32)
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, stride):
        value = magnitudes(x, start + tl.arange(0, BLOCK), n)
        counts += tl.histogram((value >> SHIFT) & ((1 << WIDTH) - 1), 1 << WIDTH, (value >> (SHIFT + WIDTH)) == found)
    tl.atomic_add(table + tl.arange(0, 1 << WIDTH), counts.to(tl.int64), sem="relaxed")


def least_of(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k-th largest magnitude, as the integer of its bits, and how many of the equal ones are among the k.

    Both are tensors of one element, int32 and int64.
    """
    least = torch.zeros(1, dtype=torch.int32, device=x.device)
    left = torch.full((1,), k, device=x.device)
    programs = min(triton.cdiv(x.numel(), BLOCK), _PROGRAMS)
    for shift, width in _DIGITS:
        table = torch.zeros(1 << width, dtype=torch.int64, device=x.device)
        sizes = x.numel(), programs * BLOCK
        launch(_kernel, (programs,), x, least, table, *sizes, SHIFT=shift, WIDTH=width, BLOCK=BLOCK)
        least, left = _step(table, least, left, width)
    return least, left


def _step(table: Tensor, least: Tensor, left: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The next digit: the highest from which on there are enough; and how many of them it has to give."""
    from_here = table.flip(0).cumsum(0).flip(0)
    digit = (from_here >= left).sum(0, keepdim=True) - 1
    above = from_here[digit] - table[digit]
    return ((least << width) + digit).to(torch.int32), left - above
