"""Training runs in groups that may be compared: the same task, model, data, workers, link, epochs and device.

Law: a figure is a mean over seeds, and a difference between two of them is one only above the noise floor: how far two
means of uncompressed runs, of as many seeds, may be apart.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gradwire.bench.records import Record, Settings
from gradwire.bench.report._families import PLAIN, family_of, named
from gradwire.bench.statistics import Spread, noise_floor, spread

__all__ = ["NOISE", "Entry", "Panel", "panels"]

NOISE = "within noise"

_COMPARED = ("task", "model", "data", "workers", "link", "epochs", "backend", "device")
_CONFIGURED = ("compressor", "options", "loss_scale", "recipe")


@dataclass(frozen=True)
class Entry:
    """A method in a panel.

    Args:
        method: its label; of several configurations with one label the second and later ones are numbered.
        family: as ``family_of``.
        runs: that ended well, at least one, a run for each seed.
    """

    method: str
    family: str
    runs: tuple[Record, ...]

    @cached_property
    def quality(self) -> Spread:
        """At the end of training, over the seeds."""
        return spread([math.nan if run.quality is None else run.quality for run in self.runs])

    @property
    def timed(self) -> bool:
        """Whether its times mean anything: no run was made beside another one."""
        return all(run.environment.get("jobs", 1) == 1 for run in self.runs)

    @property
    def speed(self) -> Spread | None:
        """Examples a second; None where it was not timed."""
        return self.over(lambda run: run.examples_per_second) if self.timed else None

    @property
    def step(self) -> Spread | None:
        """Seconds of a step; None where it was not timed."""
        return self.over(lambda run: run.seconds.get("step")) if self.timed else None

    def over(self, figure: Callable[[Record], float | None]) -> Spread | None:
        """A figure of the runs; None where one of them does not have it."""
        values = [value for run in self.runs if (value := figure(run)) is not None]
        return spread(values) if len(values) == len(self.runs) else None

    def mean(self, name: str) -> float | None:
        """The mean of a field of the runs; None where one of them does not have it."""
        found = self.over(lambda run: getattr(run, name))
        return None if found is None else found.mean


@dataclass(frozen=True)
class Panel:
    """What may be compared.

    Args:
        settings: of one of its runs: all have the same task, model, data, workers, link, epochs, backend and device.
        measure: what quality is, in words.
        higher_is_better: of it.
        entries: the methods, the uncompressed one first, the others by name.
        baseline: the uncompressed one; None: it was not run.
    """

    settings: Settings
    measure: str
    higher_is_better: bool
    entries: tuple[Entry, ...]
    baseline: Entry | None

    @cached_property
    def scale(self) -> float:
        """100 where quality is a share, which is then shown in percent; else 1."""
        qualities = [run.quality for entry in self.entries for run in entry.runs if run.quality is not None]
        return 100.0 if self.higher_is_better and all(0 <= quality <= 1 for quality in qualities) else 1.0

    @property
    def unit(self) -> str:
        """The measure, and its unit."""
        return f"{self.measure}, %" if self.scale != 1 else self.measure

    def shown(self, quality: float, *, signed: bool = False) -> str:
        """A quality, or a difference of two, for people; in ``unit``."""
        value = self.scale * quality
        digits = ".2f" if self.scale != 1 or abs(value) < 1000 else ".4g"
        return f"{value:{'+' if signed else ''}{digits}}"

    @property
    def title(self) -> str:
        """What is the same for all of it, in one line."""
        of = self.settings
        where = "" if (of.backend, of.device) == ("gloo", "cpu") else f", {of.backend} on {of.device}"
        link = "" if of.link == "none" else f", {of.link}"
        epochs = f"{of.epochs} epoch{'s' * (of.epochs != 1)}"
        return f"{of.task}: {of.model} on {of.data}, {of.workers} workers{link}, {epochs}{where}"

    def relative_speed(self, entry: Entry) -> float | None:
        """Examples a second over those without compression."""
        mine, plain = entry.speed, self.baseline and self.baseline.speed
        return mine.mean / plain.mean if mine and plain and plain.mean else None

    def difference(self, entry: Entry) -> float | None:
        """Of the mean quality from that without compression; None: there is none to compare with."""
        return None if self.baseline is None else entry.quality.mean - self.baseline.quality.mean

    def floor(self, entry: Entry | None = None) -> float | None:
        """The smallest difference that is one; None where it is not known.

        Args:
            entry: whose difference; None: of a method with as many seeds as the uncompressed one.
        """
        if self.baseline is None:
            return None
        return noise_floor(self.baseline.quality, len((entry or self.baseline).runs))

    def verdict(self, entry: Entry) -> str:
        """One of "baseline", "within noise", "better" or "worse"; "noise not known" where there are too few seeds."""
        difference, floor = self.difference(entry), self.floor(entry)
        if entry is self.baseline:
            return "baseline"
        if difference is None or floor is None:
            return "noise not known"
        if not math.isnan(difference) and abs(difference) <= floor:
            return NOISE
        return "better" if (difference > 0) == self.higher_is_better and not math.isnan(difference) else "worse"


def panels(runs: Iterable[Record]) -> list[Panel]:
    """The runs that ended well, in groups that may be compared, ordered by task, model, workers and link."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for run in runs:
        if run.status == "ok":
            groups.setdefault(tuple(getattr(run.settings, name) for name in _COMPARED), []).append(run)
    return [_panel(groups[key]) for key in sorted(groups)]


def _panel(runs: Sequence[Record]) -> Panel:
    found = _entries(runs)
    plain = next((entry for label in PLAIN for entry in found if entry.method == label), None)
    first = runs[0]
    ordered = sorted(found, key=lambda entry: (entry is not plain, entry.method))
    return Panel(first.settings, first.measure, first.higher_is_better, tuple(ordered), plain)


def _entries(runs: Sequence[Record]) -> list[Entry]:
    """Runs with one label and different settings are different methods: a mean over them would be of nothing."""
    found: dict[str, dict[str, list[Record]]] = {}
    for run in runs:
        configured = json.dumps([getattr(run.settings, name) for name in _CONFIGURED], sort_keys=True, default=repr)
        name = named(run.settings.method, ours=run.settings.compressor is not None)
        found.setdefault(name, {}).setdefault(configured, []).append(run)
    return [
        _entry(method if number == 1 else f"{method} #{number}", same)
        for method, configurations in found.items()
        for number, same in enumerate(configurations.values(), 1)
    ]


def _entry(method: str, runs: Sequence[Record]) -> Entry:
    compressor = runs[0].settings.compressor
    name = None if compressor is None else str(compressor.get("name"))
    return Entry(method, family_of(runs[0].settings.method, name), tuple(runs))
