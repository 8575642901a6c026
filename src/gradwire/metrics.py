"""Metrics: what an exchange did, as plain numbers.

Invariants:
    Bytes are counted where they are handed to a collective, times the number of links that they cross. So the figure is
    the traffic of this rank, and not an estimate from the method's name.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["WINDOW", "Metrics"]

WINDOW = 32
"""Steps that recent figures are of at least, and half of what they are of at most."""


class Timed:
    """A context whose duration is added to a phase: a class, because a generator costs twice as much in each message.

    Args:
        metrics: metrics with the clock and the sums.
        phase: a key of ``seconds``.
    """

    __slots__ = ("_metrics", "_phase", "_start")

    def __init__(self, metrics: Metrics, phase: str) -> None:
        self._metrics, self._phase = metrics, phase

    def __enter__(self) -> None:
        self._start = self._metrics.clock()

    def __exit__(self, *unused: object) -> None:
        metrics, end = self._metrics, self._metrics.clock()
        metrics.seconds[self._phase] += end - self._start
        if metrics.spans is not None and self._phase == "communicate":
            metrics.spans.append((self._start, end))


class CountedBytes(NamedTuple):
    """Bytes counted up to a step, or since one."""

    step: int = 0
    bytes_sent: int = 0
    dense_bytes: int = 0


NOTHING = CountedBytes()


@dataclass
class Metrics:
    """Counters since the start, or since ``reset``.

    ``seconds`` are wall-clock times of the phases on the thread that runs them; they overlap with the backward pass,
    so they do not add up to the step. On CUDA they are the time to launch the work. ``clock`` is what they are read
    from.

    ``local_bytes`` are those of ``bytes_sent`` that a strategy knows to stay within the host.

    ``compared_bytes`` are sent besides ``bytes_sent``, by which ranks tell each other where they stand.

    ``begun`` is the step after which they count.

    ``spans`` are the times in which something travelled, each with its beginning and its end, where somebody asks for
    them.

    ``ratio`` is that of the last ``WINDOW`` to ``2 * WINDOW`` steps, where somebody counts them with ``turn``.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    local_bytes: int = 0
    compared_bytes: int = 0
    dense_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("encode", "communicate", "decode"), 0.0))
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False, compare=False)
    begun: int = field(default=0, repr=False, compare=False)
    spans: deque[tuple[float, float]] | None = field(default=None, repr=False, compare=False)
    _marks: tuple[CountedBytes, CountedBytes] = field(default=(NOTHING, NOTHING), repr=False, compare=False)

    def turn(self, step: int) -> None:
        """Begin a step; every ``WINDOW`` of them the window of the recent figures moves on.

        Args:
            step: the steps before it.
        """
        if step % WINDOW == 0:
            self._marks = self._marks[1], CountedBytes(step, self.bytes_sent, self.dense_bytes)

    def timed(self, phase: str) -> Timed:
        """Return a context whose duration is added to a phase, each time that it is entered."""
        return Timed(self, phase)

    def reset(self, step: int = 0) -> None:
        """Reset all counters to zero.

        Args:
            step: the steps that were made before, which are not counted.
        """
        self.begun = step
        self.bytes_sent = self.bytes_received = self.local_bytes = self.compared_bytes = self.dense_bytes = 0
        self.seconds.update(dict.fromkeys(self.seconds, 0.0))
        self._marks = (CountedBytes(step), CountedBytes(step))

    @property
    def total_ratio(self) -> float:
        """Dense bytes over bytes sent: how many times less traffic than an uncompressed ring all-reduce."""
        return self.dense_bytes / self.bytes_sent if self.bytes_sent else 1.0

    def recent(self) -> CountedBytes:
        """Count the bytes of the last steps, ``WINDOW`` at least once there were as many."""
        since = self._marks[0]
        return CountedBytes(since.step, self.bytes_sent - since.bytes_sent, self.dense_bytes - since.dense_bytes)

    @property
    def ratio(self) -> float:
        """The same of the last steps alone, which a method chosen on the way does not share with earlier ones."""
        recent = self.recent()
        return recent.dense_bytes / recent.bytes_sent if recent.bytes_sent else self.total_ratio

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain numbers."""
        return {
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "local_bytes": self.local_bytes,
            "compared_bytes": self.compared_bytes,
            "dense_bytes": self.dense_bytes,
            "ratio": self.ratio,
            "total_ratio": self.total_ratio,
            **{f"{phase}_seconds": seconds for phase, seconds in self.seconds.items()},
        }
