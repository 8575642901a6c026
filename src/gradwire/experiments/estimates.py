"""How long a run will take, by what earlier ones took."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

from gradwire.experiments.records import Record, RunSettings

__all__ = ["Estimates"]


class Estimates:
    """Seconds of a run, from the nearest ones that are known: the same but for the seed, else of any method, else of
    any number of workers.

    Args:
        records: of runs that have ended.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._known: dict[tuple[object, ...], list[float]] = defaultdict(list)
        for record in records:
            if record.wall_seconds is not None:
                for key in _keys(record.settings):
                    self._known[key].append(record.wall_seconds / record.settings.epochs)

    def of(self, settings: RunSettings) -> float | None:
        """Seconds; None: nothing like it has run."""
        for key in _keys(settings):
            if key in self._known:
                return settings.epochs * statistics.median(self._known[key])
        return None

    def total(self, runs: Iterable[RunSettings]) -> float | None:
        """The seconds of all, one after the other; what is not known takes as long as the others; None: none is."""
        each = [self.of(settings) for settings in runs]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) * len(each) / len(known) if known else (None if each else 0.0)


def _keys(settings: RunSettings) -> list[tuple[object, ...]]:
    task = (settings.task, settings.model, settings.data)
    where = (settings.workers, settings.link, settings.device)
    return [(*task, *where, settings.method), (*task, *where), task]
