"""Random rounding to the levels of one norm of the whole tensor: a pass that measures, and a pass that rounds.

The payload is that norm N, float32, and a level in ``bits`` bits for each element, decoded as level * N / levels. What
is larger than N is cut off at N, so a method that clips gives a smaller norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.compressors.levels import ops
from gradwire.ops import nonfinite
from gradwire.ops.levels import TINY
from gradwire.types import Field, Key, Layout, Payload

__all__ = ["Grid", "Moments", "clipped", "linf_omega", "uniform_omega"]


class Moments(NamedTuple):
    """Moments of ``n`` > 0 elements from ``ops.moments``; the sums of the segments are added in float64."""

    table: Tensor
    n: int

    def largest(self) -> Tensor:
        """The largest |x|, or NaN if there is one, because as an integer NaN is the largest."""
        return self.table[:, 0].view(torch.int32).amax(0, keepdim=True).view(torch.float32)

    def length(self) -> Tensor:
        """The norm |x|, from a table that is not centred."""
        squares = self.table[:, 3].double() * self._units().square()
        return squares.sum(0, keepdim=True).sqrt().float()

    def deviation(self) -> Tensor:
        """The standard deviation, from a centred table; exactly zero if all elements are equal."""
        origins, sums, squares = self.table[:, 1:].double().unbind(1)
        sums, squares = sums * self._units(), squares * self._units().square()
        counts = torch.full_like(sums, ops.SEGMENT)
        counts[-1:].fill_(self.n - ops.SEGMENT * (len(counts) - 1))
        means = origins + sums / counts
        within = (squares - sums * sums / counts).clamp_min_(0.0)
        away = means - (counts * means).sum() / self.n
        return ((within + counts * away * away).sum(0, keepdim=True) / self.n).sqrt().float()

    def _units(self) -> Tensor:
        """The unit in which the sums of each segment are counted."""
        return ops.units_of(self.table[:, 0]).double()


@dataclass(frozen=True)
class Grid:
    """A grid of levels of one norm for the whole tensor.

    Args:
        bits: bits for each element.
        levels: number of levels above zero.
        norm: function that makes the norm, one float32, from the moments of n > 0 elements.
        centred: true: ``norm`` needs the deviation.
        shrink: factor of what is decoded.
    """

    bits: int
    levels: int
    norm: Callable[[Moments], Tensor]
    centred: bool = False
    shrink: float = 1.0

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        return Layout((Field("norm", torch.float32, min(n, 1)), Field("codes", torch.uint8, -(-n * self.bits // 8))))

    def measure(self, x: Tensor, norm: Tensor) -> None:
        """Write the norm of a tensor that is not empty."""
        table = _table(x)
        ops.moments(x, table, self.centred)
        self._measure(table, x.numel(), norm)

    def encode(self, x: Tensor, payload: Payload, key: Key) -> None:
        norm, codes = payload
        if x.numel() == 0:
            return
        self.measure(x, norm)
        ops.round_encode(x, norm, codes, self.bits, self.levels, key.stream(), key.step)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, key: Key, status: Tensor | None
    ) -> None:
        norm, codes = payload
        if grad.numel() == 0:
            return
        table = _table(grad)
        ops.moments_feedback(grad, residual, table, self.centred, status)
        self._measure(table, grad.numel(), norm)
        ops.round_keep(residual, norm, codes, self.bits, self.levels, self.shrink, key.stream(), key.step)
        if status is not None:
            # The length of a finite tensor can overflow, and that leaves NaN in the residual.
            nonfinite(norm, status)

    def add_decoded(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool = False) -> None:
        norms, codes = payloads
        block = max(16, -(-out.numel() // 16) * 16)
        ops.qsgd_add_decoded(norms, codes, out, self.bits, block, scale * self.shrink, self.levels, fresh=fresh)

    def _measure(self, table: Tensor, n: int, norm: Tensor) -> None:
        found = self.norm(Moments(table.view(-1, 4), n))
        torch.where(found < TINY, torch.zeros_like(found), found, out=norm)


def clipped(found: Moments, clip: float) -> Tensor:
    """The largest magnitude, limited to ``clip`` deviations; a clip of 0, or a deviation of 0 or inf, is no limit."""
    largest = found.largest()
    if not clip:
        return largest
    cut = found.deviation() * clip
    return torch.where((cut > 0) & cut.isfinite(), torch.minimum(largest, cut), largest)


def uniform_omega(size: int, levels: int) -> float:
    """The variance factor of rounding ``size`` elements to levels of their norm."""
    return min(size / (4 * levels**2), math.sqrt(size) / levels)


def linf_omega(size: int, levels: int) -> float:
    """The variance factor of rounding to levels of the largest magnitude; (1, t, ..., t) with t = 1 / (2 levels (1 +
    omega)) attains it.
    """
    return (math.sqrt(1 + (size - 1) / levels**2) - 1) / 2


def _table(x: Tensor) -> Tensor:
    return torch.empty(4 * -(-x.numel() // ops.SEGMENT), dtype=torch.float32, device=x.device)
