"""Metrics: what an exchange did, as plain numbers.

Law: bytes are counted where they are handed to a collective, times the number of links they cross, so that the
figure is the traffic of this rank and not an estimate from the method's name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Metrics"]


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
        self._metrics.seconds[self._phase] += self._metrics.clock() - self._start


@dataclass
class Metrics:
    """Counters since the start, or since ``reset``.

    ``seconds`` are wall-clock times of the phases on the thread that runs them; they overlap with the backward pass,
    so they do not add up to the step. On CUDA they are the time to launch the work. ``clock`` is what they are read
    from.

    ``local_bytes`` are those of ``bytes_sent`` that a strategy knows to stay within the host.

    ``compared_bytes`` are sent besides ``bytes_sent``, by which ranks tell each other where they stand.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    local_bytes: int = 0
    compared_bytes: int = 0
    dense_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("encode", "communicate", "decode"), 0.0))
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False, compare=False)

    def timed(self, phase: str) -> Timed:
        """Return a context whose duration is added to a phase."""
        return Timed(self, phase)

    def reset(self) -> None:
        """Reset all counters to zero."""
        self.bytes_sent = self.bytes_received = self.local_bytes = self.compared_bytes = self.dense_bytes = 0
        self.seconds.update(dict.fromkeys(self.seconds, 0.0))

    @property
    def ratio(self) -> float:
        """Dense bytes over bytes sent: how many times less traffic than an uncompressed ring all-reduce."""
        return self.dense_bytes / self.bytes_sent if self.bytes_sent else 1.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "local_bytes": self.local_bytes,
            "compared_bytes": self.compared_bytes,
            "dense_bytes": self.dense_bytes,
            "ratio": self.ratio,
            "seconds": dict(self.seconds),
        }
