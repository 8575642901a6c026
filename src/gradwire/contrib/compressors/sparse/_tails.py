"""Thresholds from distributions fitted to the magnitudes, in stages.

With y the magnitudes (less the threshold of the stage before, of those above it), a = mean y and p the wanted share:

    exp     eta = a ln(1/p)
    gamma   s = ln a - mean ln y;  shape = (3 - s + sqrt((s - 3)^2 + 24 s)) / (12 s);
            eta = (a / shape) (ln(1/p) - ln Gamma(shape)), which holds for small p
    gp      shape = (1 - a^2 / var) / 2;  scale = a (a^2 / var + 1) / 2;  eta = scale / shape (p^-shape - 1)

What has no spread is exponential.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwire.contrib.compressors.sparse._measure import MagnitudeMoments, measure, unit_of
from gradwire.kernels.segments import cache_pieces

__all__ = ["STAGE_RATIO", "fit", "sum_of_logs", "threshold"]

STAGE_RATIO = 0.25
_FEW = 30
_SMALLEST = 2.0**-149


def fit(of: MagnitudeMoments, share: float, distribution: str, logs: float = 0.0) -> float:
    """Fit a distribution and return the threshold, >= 0, that the given fraction exceeds; ``logs`` is the sum of ln y,
    for "gamma".

    >>> round(fit(MagnitudeMoments(size=4, total=8.0, squares=0.0, largest=5.0), 0.25, "exp"), 4)
    2.7726
    """
    mean = of.total / of.size
    if distribution == "gamma":
        return max(0.0, _gamma(mean, math.log(mean) - logs / of.size, share))
    if distribution == "gp":
        return _pareto(mean, of.squares / of.size - mean * mean, share)
    return mean * math.log(1 / share)


def _gamma(mean: float, s: float, share: float) -> float:
    if s < 1e-9:
        return mean * math.log(1 / share)
    shape = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    return mean / shape * (math.log(1 / share) - math.lgamma(shape))


def _pareto(mean: float, variance: float, share: float) -> float:
    spread = mean * mean / variance if variance > 1e-12 * mean * mean else 1.0
    shape, scale = (1 - spread) / 2, mean * (spread + 1) / 2
    if abs(shape) < 1e-6:
        return scale * math.log(1 / share)
    return scale / shape * math.expm1(-shape * math.log(share))


def threshold(x: Tensor, ratio: float, distribution: str, stages: int) -> float:
    """Compute the magnitude from which on elements of ``x`` (flat) are sent, for a fraction ``ratio`` of all.

    Never above the largest magnitude, so that something is sent; 0 where all are zero, NaN where one is not finite.
    """
    first = measure(x)
    if not math.isfinite(first.largest) or first.largest == 0:
        return 0.0 if first.largest == 0 else math.nan
    unit = unit_of(first.largest)
    if distribution != "exp" or math.isinf(first.total):
        first = measure(x, unit=unit)
    share = ratio * x.numel() / first.size
    eta = _stages(x, first, share, distribution, stages, unit) if share < 1 else 0.0
    return min(max(eta, _SMALLEST), first.largest)


def _stages(x: Tensor, of: MagnitudeMoments, share: float, distribution: str, stages: int, unit: float) -> float:
    logs = sum_of_logs(x) if distribution == "gamma" else 0.0
    later = "gp" if distribution == "gamma" else distribution
    left, eta = min(stages, 1 + int(math.log(share) / math.log(STAGE_RATIO))), 0.0
    while left > 1 and of.size >= _FEW:
        eta += fit(of, STAGE_RATIO, distribution, logs)
        of = measure(x, low=eta, unit=unit)
        distribution, share, left = later, share / STAGE_RATIO, left - 1
    return eta + fit(of, share, distribution, logs) if of.size else eta


def sum_of_logs(x: Tensor) -> float:
    """Compute the sum of ln |x| over the x that are not 0."""
    return sum(
        float(torch.where(piece != 0, piece.abs(), 1.0).log_().sum(dtype=torch.float64)) for _, piece in cache_pieces(x)
    )
