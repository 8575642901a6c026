"""Cost of an operation while other processes compute: its slow-down, beside that of torch's own addition.

A thread without a processor is late by milliseconds, and whoever waits for it is late, too. So each call counts, also
the rare one that took a hundred times as long: what is compared are the mean times of many calls in a row, in turns
without and with busy neighbours. Reported is the median of the turns.

Every call of torch opens one parallel region with one barrier. An operation that is slowed down more than an addition
that moves as many bytes waits more often, or for more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gradwire_lab.bench.neighbours import Neighbours
from gradwire_lab.bench.statistics import stopwatch, summarise

__all__ = ["Addition", "SlowDown", "slow_down"]

TURNS = 5
_SECONDS = 0.1  # of each contestant in a turn
_BYTES_PER_ELEMENT = 12


class Addition:
    """The yardstick: torch's a = b + c, which moves ``nbytes`` with the current number of threads.

    Example:
        >>> addition = Addition(1200)
        >>> addition()
        >>> addition.a.numel(), addition.a[0].item()
        (100, 3.0)
    """

    def __init__(self, nbytes: int) -> None:
        n = max(1, round(nbytes / _BYTES_PER_ELEMENT))
        self.a, self.b, self.c = torch.zeros(n), torch.ones(n), torch.full((n,), 2.0)

    def __call__(self) -> None:
        torch.add(self.b, self.c, out=self.a)


@dataclass(frozen=True)
class SlowDown:
    """The seconds of one call alone and beside busy neighbours.

    Args:
        alone: without them.
        busy: seconds of the call while the neighbours are busy.
    """

    alone: float
    busy: float

    @property
    def factor(self) -> float:
        """The slow-down: the time of a call beside busy neighbours over its time alone.

        >>> SlowDown(alone=0.5, busy=1.0).factor
        2.0
        """
        return self.busy / self.alone


def slow_down(
    contestants: dict[str, Callable[[], object]],
    neighbours: Neighbours,
    turns: int = TURNS,
    seconds: float = _SECONDS,
    prepare: Callable[[], object] | None = None,
) -> dict[str, SlowDown]:
    """Run every contestant many times in a row, alone and beside the neighbours, in turns.

    Args:
        contestants: functions to call, by name.
        neighbours: neighbours that have been started.
        turns: without and with the neighbours, >= 1.
        seconds: seconds that a contestant runs in a turn.
        prepare: called before each run, outside of every measurement.

    Returns:
        The slow-down of each contestant: medians of the turns' mean times.
    """
    means: dict[tuple[str, bool], list[float]] = {}
    for _ in range(turns):
        for busy in (False, True):
            (neighbours.compute if busy else neighbours.rest)()
            for name, run in contestants.items():
                means.setdefault((name, busy), []).append(_mean_seconds(run, seconds, prepare))
    neighbours.rest()
    return {name: SlowDown(*(summarise(means[name, busy]).median for busy in (False, True))) for name in contestants}


def _mean_seconds(run: Callable[[], object], seconds: float, prepare: Callable[[], object] | None) -> float:
    total, calls, end = 0.0, 0, time.perf_counter() + seconds
    once = stopwatch(run)
    while calls == 0 or time.perf_counter() < end:
        if prepare is not None:
            prepare()
        total, calls = total + once(), calls + 1
    return total / calls
