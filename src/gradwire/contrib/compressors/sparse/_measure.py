"""Measurement of a gradient in one pass, from which thresholds are computed."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.contrib.compressors.sparse.ops import tail_moments, tail_segments

__all__ = ["MagnitudeMoments", "measure", "unit_of"]

_MOST = 126


class MagnitudeMoments(NamedTuple):
    """Moments of y = |x| - low over low < |x| < high: the count, the sums of y and y^2; and the largest |x| of all."""

    size: int
    total: float
    squares: float
    largest: float


def measure(x: Tensor, low: float = 0.0, high: float = math.inf, unit: float = 1.0) -> MagnitudeMoments:
    """Measure the moments of a flat tensor: float32 sums of 1024 elements, added up in float64.

    Args:
        unit: see ``unit_of``; with 1 the squares of small elements vanish, and sums of huge ones overflow.

    >>> measure(torch.tensor([1.0, -3.0, 0.0, 9.0]), low=0.5, high=5.0)
    MagnitudeMoments(size=2, total=3.0, squares=6.5, largest=9.0)
    """
    if x.numel() == 0:
        return MagnitudeMoments(0, 0.0, 0.0, 0.0)
    table = torch.empty(4 * tail_segments(x.numel()), dtype=torch.float32, device=x.device)
    tail_moments(x, table, low, high, unit)
    rows = table.view(-1, 4)
    # The magnitudes are compared as integers, of which that of a NaN is the largest.
    largest = rows[:, 0].contiguous().view(torch.int32).amax().view(torch.float32)
    size, total, squares = rows[:, 1:].sum(0, dtype=torch.float64).tolist()
    return MagnitudeMoments(int(size), total / unit, squares / unit / unit, float(largest))


def unit_of(largest: float) -> float:
    """The power of two that scales magnitudes up to ``largest``, finite and above 0, to below 2.

    >>> unit_of(5.0), unit_of(1e-45)
    (0.25, 8.507059173023462e+37)
    """
    return 2.0 ** -max(-_MOST, math.frexp(largest)[1] - 1)
