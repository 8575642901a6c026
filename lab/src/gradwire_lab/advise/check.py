"""Checks of the model: predictions against measured steps.

Invariants:
    Everything that a prediction is made of is measured in groups of its own before the step that it predicts, and
    independently of that step: the backward pass without an exchange, the codecs without a network, and the link's
    latency with 64 bytes. Then the step is measured over a ``netlab``, as ``gradwire replay`` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gradwire.compressors.base import Compressor
from gradwire.errors import GroupError, require
from gradwire_lab.advise.advice import Candidate
from gradwire_lab.advise.cluster import Cluster
from gradwire_lab.advise.codec import Codec
from gradwire_lab.advise.gauge import Wanted, gauge_codecs, gauge_replayed, gauge_wire
from gradwire_lab.advise.pipeline import PipelineStep
from gradwire_lab.advise.profile import Profile
from gradwire_lab.bench.machine import cores, environment
from gradwire_lab.experiments.replay import Contestant, ReplayPlan, replay
from gradwire_lab.netlab import Link, lab_for

__all__ = ["DENSE", "SHARE", "WITHIN", "Compared", "Setting", "compare", "holds"]

WITHIN, SHARE = 0.20, 0.90
"""A prediction holds if it is off by at most so much, and so many must."""

DENSE = "ddp"
"""The label of no compression."""


@dataclass(frozen=True)
class Setting:
    """The setting of a comparison.

    Args:
        models: names of models, as ``gradwire models`` lists them.
        workers: numbers of workers, all of them on this machine.
        links: shaped ones.
        methods: labels of the methods; ``DENSE`` comes in addition.
        steps: number of steps of each measured row.
        budget: seconds of each, as in ``replay``.
        small: the small variants of the models.

    Raises:
        ConfigError: a link that no lab has.
    """

    models: Sequence[str]
    workers: Sequence[int]
    links: Sequence[Link]
    methods: dict[str, Compressor]
    steps: int = 7
    budget: float = 8.0
    small: bool = False

    def __post_init__(self) -> None:
        shaped = all(link.rate is not None for link in self.links)
        require(shaped, "--link", "a rate: a link without one has nothing to predict", "none")
        for link in self.links:
            link.in_lab()


@dataclass(frozen=True)
class Compared:
    """One combination, with its prediction and its measurement.

    Args:
        model: name of the model.
        workers: number of workers.
        link: link between the workers.
        method: label of the method.
        step: predicted; None: there is no prediction.
        measured: seconds of a step; None: it failed.
        phases: seconds that the replay measured for encode, communicate, decode; None where torch's hook has no such
            phases.
        error: message of the failure; else empty.
    """

    model: str
    workers: int
    link: str
    method: str
    step: PipelineStep | None
    measured: float | None
    phases: dict[str, float] | None
    error: str = ""

    @property
    def off(self) -> float | None:
        """The relative error of the prediction: prediction over measurement, minus 1."""
        return None if self.step is None or not self.measured else self.step.total / self.measured - 1

    @property
    def good(self) -> bool:
        """Return whether the prediction is close enough to the measurement."""
        return self.off is not None and abs(self.off) <= WITHIN

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        row = {name: getattr(self, name) for name in ("model", "workers", "link", "method", "measured", "error")}
        step = None if self.step is None else vars(self.step)
        return row | {"predicted": step, "phases": self.phases, "off": self.off, "good": self.good} | environment()


def holds(rows: Sequence[Compared]) -> bool:
    """Return whether enough predictions are good: 90 % within 20 %."""
    return bool(rows) and sum(row.good for row in rows) >= SHARE * len(rows)


def compare(setting: Setting, progress: Callable[[str], object] = lambda _: None) -> Iterator[Compared]:
    """Predict and measure every combination, and yield each row as soon as it was measured.

    Args:
        setting: combinations to compare.
        progress: function that is called with a line before each measurement that a prediction is made of.

    Raises:
        ConfigError: no root, no iproute2, or a number out of range.
    """
    for model in setting.models:
        for workers in setting.workers:
            progress(f"{model}, {workers} workers: measuring the backward pass without an exchange")
            profile = gauge_replayed(model, workers, small=setting.small)
            candidates = [Candidate(label, each) for label, each in setting.methods.items()]
            wanted = [Wanted(each.compressor, each.strategy_for(workers), workers) for each in candidates]
            codecs: list[Codec | str]
            try:
                # The median of the repeats: the steps that are compared are medians, too.
                codecs = gauge_codecs(profile.buckets, wanted, together=workers, progress=progress, typical=median)
            except GroupError as error:
                codecs = [" ".join(str(error).split())] * len(wanted)
            for link in setting.links:
                steps = _predicted(profile, workers, link, candidates, codecs)
                yield from _measured(setting, model, workers, link, steps)


def _predicted(
    profile: Profile, workers: int, link: Link, candidates: Sequence[Candidate], codecs: Sequence[Codec | str]
) -> dict[str, PipelineStep | str]:
    with lab_for(workers, link) as lab:
        alphas = gauge_wire(workers, lab)
    cluster = Cluster(workers, alphas.wire(workers, link), cores=cores() / workers)
    steps: dict[str, PipelineStep | str] = {DENSE: cluster.dense(profile)}
    for each, codec in zip(candidates, codecs, strict=True):
        if isinstance(codec, str):
            steps[each.label] = codec
        else:
            jobs = cluster.jobs(profile, each.compressor, codec, each.strategy_for(workers))
            steps[each.label] = cluster.compressed(profile, jobs)
    return steps


def _measured(
    setting: Setting, model: str, workers: int, link: Link, steps: dict[str, PipelineStep | str]
) -> Iterator[Compared]:
    plan = ReplayPlan(model, setting.small, workers, link, setting.steps, setting.budget)
    contestants = [Contestant(DENSE), *(Contestant(label, each) for label, each in setting.methods.items())]
    for row in replay(plan, contestants):
        step = steps[row["method"]]
        why = step if isinstance(step, str) else row.get("error", "")
        predicted = None if isinstance(step, str) else step
        named = (row["model"], workers, str(link), row["method"])
        yield Compared(*named, predicted, row.get("seconds"), row.get("phases"), why)
