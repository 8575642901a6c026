"""Estimates of how long a run will take, from earlier runs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

from gradwire_lab.experiments.records import Record, RunSettings

__all__ = ["Estimates"]


class Estimates:
    """Estimates of a run's seconds from the most similar known runs: equal but for the seed, else with any method, else
    with any number of workers.

    Args:
        records: records of runs that have ended.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._known: dict[tuple[object, ...], list[float]] = defaultdict(list)
        for record in records:
            if record.wall_seconds is not None:
                for key in _keys(record.settings):
                    self._known[key].append(record.wall_seconds / record.settings.epochs)

    def of(self, settings: RunSettings) -> float | None:
        """Estimate the seconds of a run; None if no similar run is known."""
        for key in _keys(settings):
            if key in self._known:
                return settings.epochs * statistics.median(self._known[key])
        return None

    def total(self, runs: Iterable[RunSettings]) -> float | None:
        """Estimate the seconds of several runs in sequence; an unknown run counts as the mean of the others; None if
        all are unknown.
        """
        each = [self.of(settings) for settings in runs]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) * len(each) / len(known) if known else (None if each else 0.0)


def _keys(settings: RunSettings) -> list[tuple[object, ...]]:
    task = (settings.task, settings.model, settings.data)
    where = (settings.workers, settings.link, settings.device)
    return [(*task, *where, settings.method), (*task, *where), task]
