"""Times of several contestants under the same noise, their summaries, and limits below which a difference means
nothing.

Invariants:
    * Contestants take turns, one run each in a round, so a disturbance of the machine meets all of them. The first
      round warms up and does not count.
    * The median is reported, with the quartiles beside it. Results that were repeated with other seeds are reported as
      mean and standard deviation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = [
    "CONFIDENCE",
    "Spread",
    "Summary",
    "interleave",
    "noise_floor",
    "quantile",
    "slowest_samples",
    "spread",
    "stopwatch",
    "summarise",
    "welch_limit",
]

WARM_UP = 1

CONFIDENCE = 0.95
"""The confidence of the noise floor and of Welch's limit: how often two groups of equal runs differ by less."""


def slowest_samples(workers: Iterable[Sequence[float]]) -> list[float]:
    """The time of the slowest worker in each repeat, of workers that made as many repeats.

    >>> slowest_samples([[1.0, 2.0, 3.0], [2.0, 1.0, 5.0]])
    [2.0, 2.0, 5.0]
    """
    return [max(times) for times in zip(*workers, strict=True)]


@dataclass(frozen=True)
class Summary:
    """The median of ``count`` samples, and the quartiles on both sides of it."""

    median: float
    low: float
    high: float
    count: int


def summarise(samples: Sequence[float]) -> Summary:
    """Compute the median and the quartiles, interpolated linearly.

    >>> summarise([4.0, 1.0, 3.0, 2.0])
    Summary(median=2.5, low=1.75, high=3.25, count=4)
    """
    low, median, high = (float(q) for q in np.quantile(samples, (0.25, 0.5, 0.75)))
    return Summary(median, low, high, len(samples))


@dataclass(frozen=True)
class Spread:
    """The mean of ``count`` runs and their standard deviation (that of a sample; 0 of a single run)."""

    mean: float
    deviation: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Compute the mean and the standard deviation; a value that is not finite makes the deviation NaN.

    >>> spread([1.0, 2.0, 3.0])
    Spread(mean=2.0, deviation=1.0, count=3)
    """
    if math.isfinite(values[0]) and all(value == values[0] for value in values):
        # The mean of equal numbers is rounded: it may be none of them, and the deviation not zero.
        return Spread(float(values[0]), 0.0, len(values))
    mean = math.fsum(values) / len(values) if all(map(math.isfinite, values)) else sum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values) if math.isfinite(mean) else math.nan
    return Spread(mean, math.sqrt(squares / max(len(values) - 1, 1)), len(values))


def noise_floor(base: Spread, count: int) -> float | None:
    """The noise floor: how far the means of ``count`` runs each may differ if the runs differ in nothing but noise.

    ``t * s * sqrt(1/n + 1/m)`` with the standard deviation ``s`` of the ``n`` runs that are known, ``m`` others, and
    Student's ``t`` of n - 1 degrees of freedom, both sides together 95 %.

    Args:
        base: spread of the runs that are known.
        count: number of the other runs, >= 1.

    Returns:
        None where ``base`` has a single run, or runs that all ended alike: they show no spread.

    Example:
        >>> round(noise_floor(Spread(mean=0.98, deviation=0.01, count=3), 3), 4)
        0.0351
    """
    if base.count < 2 or not math.isfinite(base.deviation) or not base.deviation:
        return None
    return quantile(base.count - 1) * base.deviation * math.sqrt(1 / base.count + 1 / count)


def welch_limit(one: Spread, other: Spread) -> float | None:
    """The limit for the difference of two means that differ only by noise, if each group has a spread of its own.

    ``t * sqrt(v1 + v2)`` with ``v = s^2 / n`` of each, and Student's ``t`` of Welch and Satterthwaite's degrees of
    freedom, ``(v1 + v2)^2 / (v1^2 / (n1 - 1) + v2^2 / (n2 - 1))``, both sides together 95 %.

    Args:
        one: a group.
        other: the other one.

    Returns:
        None where one of them has a single run, or none of them any spread.

    Example:
        >>> round(welch_limit(Spread(0.98, 0.01, 3), Spread(0.9, 0.05, 3)), 4)
        0.1181

    Source:
        B. L. Welch, "The generalization of 'Student's' problem when several different population variances are
        involved", Biometrika 34, 1947.
    """
    groups = (one, other)
    if min(group.count for group in groups) < 2:
        return None
    shares = [group.deviation**2 / group.count for group in groups]
    if not math.isfinite(sum(shares)) or not sum(shares):
        return None
    # As parts of the sum: squares of variances may vanish.
    parts = sum((share / sum(shares)) ** 2 / (group.count - 1) for share, group in zip(shares, groups, strict=True))
    return quantile(1 / parts) * math.sqrt(sum(shares))


def quantile(freedom: float) -> float:
    """Student's t quantile for 95 %, two-sided."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def stopwatch(run: Callable[[], object]) -> Callable[[], float]:
    """Make a contestant of ``run``: a function that runs it once and returns the seconds it took."""

    def once() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return once


def interleave(
    contestants: Mapping[str, Callable[[], float]],
    *,
    seconds: float = 1.0,
    least: int = 5,
    most: int = 2000,
    warm_up: int = WARM_UP,
    prepare: Callable[[], object] | None = None,
    pause: float = 0.0,
) -> dict[str, list[float]]:
    """Run every contestant once in each round.

    Args:
        contestants: each returns the seconds it took; they run in the order given.
        seconds: no new round starts after this long.
        least: rounds that count, however long they take.
        most: rounds that count at the very most.
        warm_up: rounds before them; 0 where every contestant has run before.
        prepare: called at the start of a round, outside of every measurement.
        pause: seconds of silence before each run, so that the waiting threads of another process fall asleep.

    Returns:
        The samples of each contestant, in seconds.
    """
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    end = time.perf_counter() + seconds
    for number in range(warm_up + most):
        if number >= warm_up + least and time.perf_counter() > end:
            break
        if prepare is not None:
            prepare()
        for name, run in contestants.items():
            if pause:
                time.sleep(pause)
            taken = run()
            if number >= warm_up:
                samples[name].append(taken)
    return samples
