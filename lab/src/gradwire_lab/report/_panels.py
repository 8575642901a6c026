"""Training runs in groups that may be compared: the same task, model, data, workers, link, epochs and device.

Invariants:
    * A figure is a mean over seeds.
    * A difference between two figures is reported only above the noise floor, which is how far two means of
      uncompressed runs, of as many seeds, may be apart, and above Welch's limit, which also contains the spread of the
      method.
    * A method is compared with uncompressed runs of its own recipe, or else of the task's own, whose model was
      distributed in the same way: under FSDP2 with those under FSDP2.
    * A method that was tried at several learning rates is shown at the one that was best on the first seed, and is
      compared with uncompressed runs that were tuned in the same way.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gradwire_lab.bench.statistics import Spread, noise_floor, spread, welch_limit
from gradwire_lab.experiments.records import Record, RunSettings
from gradwire_lab.report._families import BASELINE, PLAIN, family_of, named

__all__ = ["DIVERGED", "NOISE", "Panel", "PanelEntry", "no_floor", "panels"]

NOISE = "within noise"
DIVERGED = "diverged"

_COMPARED = ("task", "model", "data", "data_digest", "start", "workers", "link", "epochs", "backend", "device")
_CONFIGURED = ("compressor", "options", "loss_scale", "recipe", "optimizer", "hook", "parallel", "weights")
_DIGITS = 8


@dataclass(frozen=True)
class PanelEntry:
    """A method in a panel.

    Args:
        method: label of the method; of several configurations with one label the second and later ones are numbered.
        family: family of the method, from ``family_of``.
        runs: runs that ended well, at least one, a run for each seed.
    """

    method: str
    family: str
    runs: tuple[Record, ...]

    @cached_property
    def quality(self) -> Spread:
        """The quality at the end of training, over the seeds; its mean is not finite where a run diverged."""
        return spread([math.nan if run.quality is None else run.quality for run in self.runs])

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The settings that differ from the task's own recipe; for a tuned method without the learning rate found by
        tuning.
        """
        known = self.runs[0].settings
        return _without_rate(known.recipe) if known.tuned else known.recipe

    @property
    def tuned(self) -> bool:
        """Return whether the learning rate is the best of several that were tried."""
        return self.runs[0].settings.tuned

    @property
    def parallel(self) -> str | None:
        """The way in which the model is distributed, "fsdp2"; None: DDP, or as the optimizer or the hook does."""
        return self.runs[0].settings.parallel

    @property
    def diverged(self) -> bool:
        """Return whether a run ended with a quality that is not a finite number."""
        return not math.isfinite(self.quality.mean)

    @property
    def timed(self) -> bool:
        """Return whether the times are meaningful: no run was made beside another one."""
        return all(run.environment.get("jobs", 1) == 1 for run in self.runs)

    @property
    def speed(self) -> Spread | None:
        """Examples a second; None if the runs were not timed."""
        return self.over(lambda run: run.examples_per_second) if self.timed else None

    @property
    def step(self) -> Spread | None:
        """Seconds a step; None if the runs were not timed."""
        return self.over(lambda run: run.seconds.get("step")) if self.timed else None

    def over(self, figure: Callable[[Record], float | None]) -> Spread | None:
        """Collect a figure from all runs; None if one of them does not have it."""
        values = [value for run in self.runs if (value := figure(run)) is not None]
        return spread(values) if len(values) == len(self.runs) else None

    @property
    def growth(self) -> float | None:
        """The largest growth in bytes of a worker's memory during a run; None if its size at the start is not known."""
        found = self.over(_growth)
        return None if found is None else found.mean

    def mean(self, name: str) -> float | None:
        """The mean of a field over the runs; None if one of them does not have it."""
        found = self.over(lambda run: getattr(run, name))
        return None if found is None else found.mean


@dataclass(frozen=True)
class Panel:
    """Runs that may be compared.

    Args:
        settings: settings of one of its runs: all have the same task, model, data, workers, link, epochs, backend and
            device.
        measure: name of the quality, in words.
        higher_is_better: true: a higher quality is better.
        entries: the methods, the ones to compare with first, the others by name.
        baselines: uncompressed ones, one for each recipe and way to distribute the model that has any, under DDP and
            with the task's own recipe first.
    """

    settings: RunSettings
    measure: str
    higher_is_better: bool
    entries: tuple[PanelEntry, ...]
    baselines: tuple[PanelEntry, ...]

    @property
    def baseline(self) -> PanelEntry | None:
        """The uncompressed entry under DDP with the task's own recipe, or else another; None if there is none."""
        return self.baselines[0] if self.baselines else None

    def compared_with(self, entry: PanelEntry) -> PanelEntry | None:
        """The uncompressed entry with a method's recipe, or else with the task's own, of a model that is distributed in
        the same way; None if there is neither.
        """
        found = {_same([each.parallel, each.tuned, each.recipe]): each for each in self.baselines}
        own = found.get(_same([entry.parallel, entry.tuned, entry.recipe]))
        return own or found.get(_same([entry.parallel, False, {}]))

    @cached_property
    def scale(self) -> float:
        """The factor for display: 100 if quality is a fraction, which is shown in percent, else 1."""
        return 100.0 if self.higher_is_better and all(0 <= quality <= 1 for quality in self._finite) else 1.0

    @cached_property
    def fine(self) -> bool:
        """Return whether the third decimal matters, as it does for losses and not for perplexities."""
        return self.scale == 1 and all(abs(quality) < 10 for quality in self._finite)

    @cached_property
    def _finite(self) -> list[float]:
        known = [run.quality for entry in self.entries for run in entry.runs if run.quality is not None]
        return [quality for quality in known if math.isfinite(quality)]

    @property
    def unit(self) -> str:
        """The name of the measure, and its unit."""
        return f"{self.measure}, %" if self.scale != 1 else self.measure

    def shown(self, quality: float, *, signed: bool = False) -> str:
        """Format a quality, or a difference of two, in ``unit``; a value that is not finite is written in words."""
        if not math.isfinite(quality):
            return DIVERGED
        value = self.scale * quality
        digits = ".3f" if self.fine else ".2f" if self.scale != 1 or abs(value) < 1000 else ".4g"
        return f"{value:{'+' if signed else ''}{digits}}"

    @property
    def title(self) -> str:
        """A title in one line, made of the settings that all runs of the panel share."""
        of = self.settings
        where = "" if (of.backend, of.device) == ("gloo", "cpu") else f", {of.backend} on {of.device}"
        link = "" if of.link == "none" else f", {of.link}"
        epochs = f"{of.epochs} epoch{'s' * (of.epochs != 1)}"
        data = of.data if of.data_digest is None else f"{of.data} {of.data_digest[:_DIGITS]}"
        begin = "" if of.start is None else f" from {of.start[:_DIGITS]}"
        return f"{of.task}: {of.model}{begin} on {data}, {of.workers} workers{link}, {epochs}{where}"

    def relative_speed(self, entry: PanelEntry) -> float | None:
        """Examples a second, divided by those without compression."""
        base = self.compared_with(entry)
        mine, plain = entry.speed, base and base.speed
        return mine.mean / plain.mean if mine and plain and plain.mean else None

    def difference(self, entry: PanelEntry) -> float | None:
        """The mean quality minus that without compression; None if nothing compares with it, or if one diverged."""
        base = self.compared_with(entry)
        if base is None or base.diverged or entry.diverged:
            return None
        return entry.quality.mean - base.quality.mean

    def floor(self, entry: PanelEntry | None = None) -> float | None:
        """The noise floor; None if it is not known.

        Args:
            entry: method whose difference is looked at; None: a method with as many seeds as the uncompressed one.
        """
        base = self.baseline if entry is None else self.compared_with(entry)
        return None if base is None else noise_floor(base.quality, len((entry or base).runs))

    def limit(self, entry: PanelEntry) -> float | None:
        """The limit that a difference must exceed: the noise floor, and Welch's limit if the method has a spread.

        None where the floor is not known.
        """
        base, floor = self.compared_with(entry), self.floor(entry)
        if base is None or floor is None:
            return None
        return max(floor, welch_limit(base.quality, entry.quality) or 0.0)

    def verdict(self, entry: PanelEntry) -> str:
        """One of "baseline", "within noise", "better", "worse" or "diverged"; "noise not known" where the uncompressed
        runs do not tell it, "nothing to compare with" where there are none of a recipe that fits.
        """
        base, difference, limit = self.compared_with(entry), self.difference(entry), self.limit(entry)
        if entry.diverged:
            return DIVERGED
        if entry is base:
            return "baseline"
        if base is None:
            return "nothing to compare with"
        if difference is None or limit is None:
            return "noise not known"
        if abs(difference) <= limit:
            return NOISE
        return "better" if (difference > 0) == self.higher_is_better else "worse"


def no_floor(base: PanelEntry) -> str:
    """Explain in words why uncompressed runs give no noise floor; empty if they give one."""
    count = base.quality.count
    if base.diverged:
        return "an uncompressed run diverged"
    if count < 2:
        return f"{count} uncompressed run has no spread. Run more seeds"
    if not base.quality.deviation:
        return f"{count} uncompressed runs that ended exactly alike show no spread. More seeds or test data are needed"
    return ""


def panels(runs: Iterable[Record]) -> list[Panel]:
    """The runs that ended well, in groups that may be compared, ordered by task, model, workers and link."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for run in runs:
        if run.status == "ok":
            known = (getattr(run.settings, name) for name in _COMPARED)
            groups.setdefault(tuple("" if each is None else each for each in known), []).append(run)
    return [_panel(groups[key]) for key in sorted(groups)]


def _panel(runs: Sequence[Record]) -> Panel:
    found = _entries(runs)
    plain = _baselines(found)
    first = runs[0]
    ordered = sorted(found, key=lambda entry: (plain.index(entry) if entry in plain else len(plain), entry.method))
    return Panel(first.settings, first.measure, first.higher_is_better, tuple(ordered), plain)


def _baselines(found: Iterable[PanelEntry]) -> tuple[PanelEntry, ...]:
    """The first uncompressed entry of each recipe and way to distribute the model, plain DDP before ours; smaller
    weights are no such entry.
    """
    plain = [entry for entry in found if entry.family == BASELINE and entry.runs[0].settings.weights is None]
    plain.sort(
        key=lambda entry: (
            entry.parallel is not None,
            bool(entry.recipe),
            entry.tuned,
            PLAIN.index(entry.runs[0].settings.method),
        )
    )
    first: dict[str, PanelEntry] = {}
    for entry in plain:
        first.setdefault(_same([entry.parallel, entry.tuned, entry.recipe]), entry)
    return tuple(first.values())


def _entries(runs: Sequence[Record]) -> list[PanelEntry]:
    """Group runs by label and settings; runs of different settings would have no meaningful mean."""
    found: dict[str, dict[str, list[Record]]] = {}
    tuned = {_same(_configured(run.settings, rate=False)) for run in runs if run.settings.tuned}
    for run in runs:
        known = run.settings
        # A run from before its suite had several rates is one of those that were tried, and is not made again.
        if "lr" in known.recipe and _same(_configured(known, rate=False)) in tuned:
            known = dataclasses.replace(known, tuned=True)
            run = dataclasses.replace(run, settings=known)
        configured = _same([known.tuned, _configured(known, rate=not known.tuned)])
        found.setdefault(_name(known), {}).setdefault(configured, []).append(run)
    return [
        _entry(method if number == 1 else f"{method} #{number}", same)
        for method, configurations in found.items()
        for number, same in enumerate(configurations.values(), 1)
    ]


def _name(known: RunSettings) -> str:
    return named(known.method, ours=known.hook is None and known.compressor is not None)


def _configured(known: RunSettings, *, rate: bool) -> dict[str, Any]:
    """The name and the settings of a method, with its learning rate or without."""
    settings = {name: getattr(known, name) for name in _CONFIGURED}
    return settings | {"name": _name(known), "recipe": known.recipe if rate else _without_rate(known.recipe)}


def _at_best_rate(runs: Sequence[Record]) -> list[Record]:
    """Keep the runs at the learning rate that was best on the first seed, out of those that were tried.

    Of equals it is the one with the most runs: where rates ended alike, the file need not have them in the suite's
    order, by which the sweep chose.
    """
    first = min(run.settings.seed for run in runs)
    tried = [run for run in runs if run.settings.seed == first]
    made = Counter(run.settings.recipe.get("lr") for run in runs)
    best = max(tried, key=lambda run: (_goodness(run), made[run.settings.recipe.get("lr")]))
    return [run for run in runs if run.settings.recipe.get("lr") == best.settings.recipe.get("lr")]


def _goodness(run: Record) -> float:
    if run.quality is None or not math.isfinite(run.quality):
        return -math.inf
    return run.quality if run.higher_is_better else -run.quality


def _without_rate(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in recipe.items() if name != "lr"}


def _same(configured: Any) -> str:
    """A value that is equal for equal settings."""
    return json.dumps(configured, sort_keys=True, default=repr)


def _growth(run: Record) -> float | None:
    if run.peak_rss_bytes is None or run.start_rss_bytes is None:
        return None
    return run.peak_rss_bytes - run.start_rss_bytes


def _entry(method: str, runs: Sequence[Record]) -> PanelEntry:
    if runs[0].settings.tuned:
        runs = _at_best_rate(runs)
        method = f"{method}, lr {runs[0].settings.recipe['lr']:g}"
    compressor = runs[0].settings.compressor
    name = None if compressor is None else str(compressor.get("name"))
    return PanelEntry(method, family_of(runs[0].settings.method, name), tuple(runs))
