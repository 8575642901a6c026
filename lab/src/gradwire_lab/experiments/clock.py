"""Times of the steps of a run: wall time, CPU time, and the phases that the exchange measures itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gradwire.metrics import Metrics

__all__ = ["UNTIMED", "Clock"]

UNTIMED = 10
"""Steps before the clocks start: buffers are made, pages are touched."""

_PHASES = {"encode": "compress", "communicate": "communicate", "decode": "decompress"}


class Clock:
    """A clock that adds up steps, each of which is made inside a ``with`` block.

    Args:
        counters: counters of an exchange, which measures its own phases.
        untimed: first steps that count for ``elapsed`` alone.
    """

    def __init__(self, counters: Metrics, untimed: int = UNTIMED) -> None:
        self.counters, self.untimed = counters, untimed
        self.steps, self.elapsed = 0, 0.0
        self.totals = dict.fromkeys(("step", "compute", *_PHASES.values()), 0.0)

    def __enter__(self) -> None:
        self._start = time.perf_counter(), time.thread_time(), dict(self.counters.seconds)

    def __exit__(self, *_: object) -> None:
        start, cpu, phases = self._start
        wall = time.perf_counter() - start
        self.elapsed += wall
        self.untimed -= 1
        if self.untimed >= 0:
            return
        self.steps += 1
        self.totals["step"] += wall
        self.totals["compute"] += time.thread_time() - cpu
        for phase, name in _PHASES.items():
            self.totals[name] += self.counters.seconds[phase] - phases[phase]

    def means(self, made: int) -> dict[str, float]:
        """The mean seconds of a counted step; if none of the ``made`` steps counted, the wall time of all, and no
        phases.
        """
        if self.steps == 0:
            return {"step": self.elapsed / made}
        return {name: total / self.steps for name, total in self.totals.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums that a resumed run continues from."""
        return {"steps": self.steps, "elapsed": self.elapsed, "totals": dict(self.totals)}

    def load_state_dict(self, state: Mapping[str, Any], left: int) -> None:
        """Continue from the sums that ``state_dict`` returned; ``left`` steps are still to be made.

        A new process touches its pages anew, so its first steps do not count either. But the last step of a run does
        where none has before: a run that was broken again and again must have a step that counts.
        """
        self.steps, self.elapsed, self.totals = state["steps"], state["elapsed"], dict(state["totals"])
        if self.steps == 0:
            self.untimed = min(self.untimed, left - 1)
