"""Times of several contestants under the same noise, and what is reported of them.

Law: contestants take turns, one run each in a round, so a disturbance of the machine meets all of them; the first
round warms up and does not count; what is reported is the median, with the quartiles beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Summary", "interleave", "stopwatch", "summarise"]

WARM_UP = 1


@dataclass(frozen=True)
class Summary:
    """The median of ``count`` samples, and the quartiles on both sides of it."""

    median: float
    low: float
    high: float
    count: int


def summarise(samples: Sequence[float]) -> Summary:
    """Median and quartiles, interpolated linearly.

    >>> summarise([4.0, 1.0, 3.0, 2.0])
    Summary(median=2.5, low=1.75, high=3.25, count=4)
    """
    low, median, high = (float(q) for q in np.quantile(samples, (0.25, 0.5, 0.75)))
    return Summary(median, low, high, len(samples))


def stopwatch(run: Callable[[], object]) -> Callable[[], float]:
    """``run`` as a contestant: a function that runs it once and returns the seconds it took."""

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
