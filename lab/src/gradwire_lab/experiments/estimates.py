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

    The seconds of a step count, and the steps of an epoch: those of known runs whose recipes name as many, or else as
    many as the recipe names.

    Args:
        records: records of runs that have ended.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._known: dict[tuple[object, ...], list[Record]] = defaultdict(list)
        for record in records:
            if record.wall_seconds is not None and record.steps:
                for key in _keys(record.settings):
                    self._known[key].append(record)

    def of(self, settings: RunSettings) -> float | None:
        """Estimate the seconds of a run; None if no similar run is known."""
        for key in _keys(settings):
            if key in self._known:
                known = self._known[key]
                step = statistics.median((record.wall_seconds or 0.0) / record.steps for record in known)
                return settings.epochs * _steps_of_epoch(settings, known) * step
        return None

    def total(self, runs: Iterable[RunSettings]) -> float | None:
        """Estimate the seconds of several runs in sequence; an unknown run counts as the mean of the others; None if
        all are unknown.
        """
        each = [self.of(settings) for settings in runs]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) * len(each) / len(known) if known else (None if each else 0.0)


def _steps_of_epoch(settings: RunSettings, known: Iterable[Record]) -> float:
    counts: dict[object, list[float]] = defaultdict(list)
    for record in known:
        counts[record.settings.recipe.get("steps")].append(record.steps / record.settings.epochs)
    named = settings.recipe.get("steps")
    if named in counts:
        return statistics.median(counts[named])
    return float(named or statistics.median(each for some in counts.values() for each in some))


def _keys(settings: RunSettings) -> list[tuple[object, ...]]:
    task = (settings.task, settings.model, settings.data)
    where = (settings.workers, settings.link, settings.device)
    return [(*task, *where, settings.method), (*task, *where), task]
