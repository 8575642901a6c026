"""A mean in units of a scale, back in its own, and the scale that follows it."""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_vector, float32
from gradwire.ops._precondition import LARGEST, LEAST, divisor
from gradwire.ops._sums import SUM_BLOCK, block_sums, mean_of_sums
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["precondition_update"]

_MOST = 100
"""Of the exponent of the power of two in whose units squares are added."""


def _check(out: Tensor, scale: Tensor, bad: Tensor, beta: float, floor: float) -> None:
    require(0 <= beta < 1, "precondition_update.beta", "in [0, 1)", beta)
    require(0 <= floor <= 1, "precondition_update.floor", "in [0, 1]", floor)
    check_vector("precondition_update.out", out, torch.float32, out)
    check_vector("precondition_update.scale", scale, torch.float32, out, out.numel())
    check_vector("precondition_update.bad", bad, torch.bool, out, 1)


@operation("precondition_update(Tensor(a!) out, Tensor(b!) scale, Tensor bad, float beta, float floor) -> ()", _check)
def precondition_update(out: Tensor, scale: Tensor, bad: Tensor, beta: float, floor: float) -> None:
    """Multiply by a scale, and let the scale follow: out = out scale, scale^2 = beta scale^2 + (1 - beta) out^2.

    Where all scales are 0 nothing has arrived before: ``out`` stays, and all scales become its mean magnitude. Later
    none is below ``floor`` times their mean, nor below 2^-100. Squares are made in units of a power of two that is near
    the mean of the scales, so that they neither vanish nor overflow; no ``out`` counts for more than 2^60 of them,
    and one that is not finite not at all.

    Args:
        out: float32, n elements.
        scale: float32, n elements, >= 0.
        bad: bool, 1 element: whether the scales stay as they are.
        beta: in [0, 1); beta and 1 - beta are rounded to float32. Larger: a longer memory.
        floor: in [0, 1].

    Raises:
        ConfigError: a tensor is not of this form, or a number is outside its range.

    >>> out, scale = torch.tensor([1.0, -1.0]), torch.tensor([3.0, 4.0])
    >>> precondition_update(out, scale, torch.tensor([False]), 0.0, 1.0)
    >>> out.tolist(), scale.tolist()
    ([3.0, -4.0], [3.5, 4.0])
    """
    level, first = mean_magnitude(scale), mean_magnitude(out)
    out.mul_(divisor(scale))
    exponent = torch.frexp(level).exponent.clamp(-_MOST, _MOST)
    unit, inverse = (torch.ldexp(torch.ones_like(level), sign * exponent) for sign in (1, -1))
    before, now = scale * inverse, (out * inverse).abs().clamp(max=LARGEST)
    square = before * before * float32(beta) + now * now * float32(1 - beta)
    moved = square.double().sqrt_().float() * unit  # torch's root of a float32 is not always the nearest
    least = (level * float32(floor)).clamp(min=LEAST)
    moved = torch.where(moved < least, least, moved)
    moved = torch.where(out.isfinite(), moved, scale)
    known = (first > 0) & first.isfinite()
    moved = torch.where(level == 0, torch.where(known, first.clamp(min=LEAST), 0.0), moved)
    scale.copy_(torch.where(bad, scale, moved))


def mean_magnitude(x: Tensor) -> Tensor:
    """The mean of |x|, 0-dimensional, added in the order of the kernels."""
    return mean_of_sums(block_sums(x.abs(), SUM_BLOCK), x.numel())


@precondition_update.kernel("CPU")
def _cpu(out: Tensor, scale: Tensor, bad: Tensor, beta: float, floor: float) -> None:
    kernels.precondition_update(
        out.data_ptr(), scale.data_ptr(), bad.data_ptr(), beta, floor, out.numel(), torch.get_num_threads()
    )
