"""Random rounding to the levels of one norm of the whole tensor: a pass that measures, and a pass that rounds.

The payload is that norm N, float32, and a level in ``bits`` bits for each element, decoded as level * N / levels. What
is larger than N is cut off at N, so a method that clips gives a smaller norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, cast

import torch
from torch import Tensor

from gradwire.compressors.levels import ops
from gradwire.kernels import Each, Pieces, nonfinite
from gradwire.vocabulary import Field, Key, Layout, Payload

__all__ = ["Grid", "linf_omega", "times", "uniform_omega"]


@dataclass(frozen=True)
class Grid:
    """A grid of levels of one norm for the whole tensor.

    Args:
        bits: bits for each element.
        levels: number of levels above zero.
        norm: norm of the tensor, one of those that ``ops.moments_norm`` computes.
        factor: factor of the norm, or of the deviation where that clips it.
        shrink: factor of what is decoded.
    """

    bits: int
    levels: int
    norm: Literal["largest", "length", "clipped"]
    factor: float = 1.0
    shrink: float = 1.0

    @property
    def centred(self) -> bool:
        """Return whether the norm needs the deviation."""
        return self.norm == "clipped" and self.factor > 0

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        return Layout((Field("norm", torch.float32, min(n, 1)), Field("codes", torch.uint8, -(-n * self.bits // 8))))

    def measure(self, x: Tensor, norm: Tensor) -> None:
        """Write the norm of a tensor that is not empty."""
        table = _table(x)
        ops.moments(x, table, self.centred)
        ops.moments_norm(table, norm, self.norm, self.factor, x.numel())

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
        ops.moments_norm(table, norm, self.norm, self.factor, grad.numel())
        ops.round_keep(residual, norm, codes, self.bits, self.levels, self.shrink, key.stream(), key.step)
        if status is not None:
            # The length of a finite tensor can overflow, and that leaves NaN in the residual.
            nonfinite(norm, status)

    def add_decoded(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool = False) -> None:
        norms, codes = payloads
        shrunk = times(self.shrink, scale)
        ops.qsgd_add_decoded(norms, codes, out, self.bits, ops.WHOLE, shrunk, self.levels, fresh=fresh)


@lru_cache(4096)
def times(factor: float, scale: float) -> float:
    """The product with a factor; of pieces, that with the factor of each: one object for equal ones.

    >>> times(0.5, 4.0)
    2.0
    """
    many: object = factor
    return cast(float, Each(each * scale for each in many)) if isinstance(many, Each) else factor * scale


def uniform_omega(size: int, levels: int) -> float:
    """The variance factor of rounding ``size`` elements to levels of their norm."""
    return min(size / (4 * levels**2), math.sqrt(size) / levels)


def linf_omega(size: int, levels: int) -> float:
    """The variance factor of rounding to levels of the largest magnitude; (1, t, ..., t) with t = 1 / (2 levels (1 +
    omega)) attains it.
    """
    return (math.sqrt(1 + (size - 1) / levels**2) - 1) / 2


def _table(x: Tensor) -> Tensor:
    """Allocate the moments of a tensor, or of all pieces, side by side."""
    many: object = x
    if not isinstance(many, Pieces):
        return torch.empty(4 * -(-x.numel() // ops.SEGMENT), dtype=torch.float32, device=x.device)
    return cast(
        Tensor, Pieces.side_by_side(tuple(4 * -(-n // ops.SEGMENT) for n in many.numel()), torch.float32, x.device)
    )
