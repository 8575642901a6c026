"""Figures of an exchange for a dashboard: its metrics, for the steps since the last row.

Invariants:
    Traffic and times are means for a step of the interval, and the ratio is that of the interval. Only what is a state
    or an alarm is written as it is.

Why:
    Counters are sums since the start, or since a state was loaded, and a curve of a sum shows nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from gradwire.errors import is_int, require
from gradwire.notices import log

__all__ = ["Measured", "MetricsWriter"]


COUNTED = ("bytes_sent", "bytes_received", "dense_bytes")

PHASES = ("encode", "communicate", "decode")


class Measured(Protocol):
    """The interface of anything with gradwire's metrics: the states of front ends, an
    ``Exchange``, the optimizers.
    """

    def metrics(self) -> dict[str, Any]: ...


class MetricsWriter(ABC):
    """A writer of a row of figures at intervals.

    Args:
        state: state that ``compress_ddp`` or another entry point returned.
        every: steps from one row to the next, >= 1. A row waits for the device, so fewer rows cost less.

    Raises:
        ConfigError: ``every`` is out of range.
    """

    def __init__(self, state: Measured, every: int = 100) -> None:
        require(is_int(every, 1), "every", "an integer >= 1", every)
        self.state, self.every = state, every
        self._calls, self._before = 0, state.metrics()

    def step(self) -> bool:
        """Count an optimizer step; return whether a row was written."""
        self._calls += 1
        if self._calls % self.every:
            return False
        now = self.state.metrics()
        if now["steps"] == self._before["steps"]:
            log.warning(
                "no gradient was exchanged in the last %d steps: is this the state of the model that trains?",
                self.every,
            )
        self.write(figures(self._before, now, self.every), now["steps"])
        self._before = now
        return True

    @abstractmethod
    def write(self, row: Mapping[str, float], step: int) -> None:
        """Hand a row to the dashboard."""


def figures(before: Mapping[str, Any], now: Mapping[str, Any], steps: int) -> dict[str, float]:
    """Make a row: the difference of two readings of the metrics, for each of the steps between them.

    >>> reading = dict.fromkeys((*COUNTED, *(f"{phase}_seconds" for phase in PHASES)), 0.0)
    >>> reading |= {"residual_norm": 0.5, "nonfinite_steps": 0}
    >>> figures(reading, {**reading, "bytes_sent": 20, "dense_bytes": 320}, 10)["ratio"]
    16.0
    >>> figures({**reading, "bytes_sent": 99}, {**reading, "bytes_sent": 20, "dense_bytes": 320}, 10)["ratio"]
    16.0
    """
    if any(now[name] < before[name] for name in COUNTED):
        # A state was loaded in between, and what was counted before it is gone.
        before = dict.fromkeys((*COUNTED, *(f"{phase}_seconds" for phase in PHASES)), 0)
    row = {f"{name}_per_step": (now[name] - before[name]) / steps for name in COUNTED}
    sent = now["bytes_sent"] - before["bytes_sent"]
    row["ratio"] = (now["dense_bytes"] - before["dense_bytes"]) / sent if sent else 1.0
    row |= {
        f"seconds_per_step/{phase}": (now[f"{phase}_seconds"] - before[f"{phase}_seconds"]) / steps for phase in PHASES
    }
    return row | {name: float(now[name]) for name in ("residual_norm", "nonfinite_steps")}
