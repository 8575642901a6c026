"""Check of what training between regions costs: methods that exchange every step, rarely, in pieces and a little.

Invariants:
    * All runs have the same model, text, batches and number of steps, and real processes as workers.
    * Every method has a learning rate of its own, the best of as many as any other's on a shorter run of the first
      seed. Those runs are in the file as well.
    * The outer rate and momentum of a method are those that its authors name, whatever would be best here; what others
      do is in the runs of ``refit``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any

from gradwire.errors import Verbatim, is_int, nearest, require
from gradwire_lab.experiments.job import MOST_SEED, Job, settings_of
from gradwire_lab.experiments.method_text import method_of
from gradwire_lab.experiments.records import Record, counted
from gradwire_lab.experiments.suite import all_diverged, best_of
from gradwire_lab.experiments.tasks.gpt import GPT
from gradwire_lab.experiments.training_method import Method

__all__ = ["DENSE", "METHODS", "RegionsPlan", "RegionsRow", "bits_of", "markdown", "regions_rows"]

DENSE = "ddp"
"""The label of synchronous data parallel, with which all others are compared."""

EVERY = 30
"""Steps of a round."""

EPOCHS = 5
"""Number of times that a run is measured."""

RATES = {"adamw": (5e-4, 1e-3, 2e-3), "muon": (5e-3, 1e-2, 2e-2)}
"""The learning rates that are tried with each inner optimizer."""

LRS, MOMENTA = (0.3, 0.5, 0.7, 0.9), (0.6, 0.8, 0.9)
"""The outer rates and momenta that ``refit`` tries, each with each, beside the plain mean of the parameters."""

PERIODS, STARTS = (10, 50), (0.05, 0.1)
"""The periods, and the shares of dense steps at the begin, that ``refit`` tries with the best of these."""

MERGES: dict[str, dict[str, Any]] = {"corrected": {}, "mixed": {"mix": 0.5}, "overwritten": {"mix": 0.0}}
"""The ways to merge a fragment into what was trained meanwhile, as ``DiLoCo`` takes them."""

_MOST_WORKERS = 16


@cache
def _task() -> GPT:
    """The task, whose text takes a while to read."""
    return GPT()


def _method(label: str, code: str, optimizer: Mapping[str, Any] | None = None, **others: Any) -> Method:
    return dataclasses.replace(method_of(code, "gpt", own=True), label=label, optimizer=optimizer, **others)


def _diloco(label: str, code: str = "none", options: Mapping[str, Any] | None = None, **own: Any) -> Method:
    config = {"name": "diloco", "every": EVERY, "lr": 0.7, "momentum": 0.9, **own}
    return _method(label, code, config, options=options or {})


def _streaming(delay: int, merge: str) -> Method:
    """Streaming DiLoCo in the floats of 4 bits of its authors, and with their outer step."""
    own: dict[str, Any] = {"fragments": 3, "delay": delay, "lr": 0.4, **MERGES[merge]}
    return _diloco(f"streaming, delay {delay}, {merge}", "e3m0", {"memory": "none"}, **own)


def _sparse(label: str, **more: Any) -> Method:
    code = ",".join(f"{name}={value}" for name, value in {"clip": "true", "places": "combinations", **more}.items())
    options = {"memory": "residual:beta=0.95", "min_numel": 0}
    return _diloco(label, f"sparseloco:{code}", options, lr=1.0, momentum=0.0)


def _muloco(label: str, code: str = "none", options: Mapping[str, Any] | None = None) -> Method:
    made = _diloco(label, code, options, lr=0.8, momentum=0.8)
    return dataclasses.replace(made, recipe={"optimizer": "muon", "betas": (0.9, 0.99), "weight_decay": 1e-4})


def _methods() -> Iterator[Method]:
    yield dataclasses.replace(method_of("torch_ddp"), label=DENSE)
    yield _diloco("diloco")
    yield _sparse("sparseloco, by workers")
    yield _sparse("sparseloco, by senders", aggregate="senders")
    # Nothing is trained while a fragment is under way for 0 steps, so there is one merge less.
    yield from (_streaming(0, merge) for merge in ("corrected", "mixed"))
    yield from (_streaming(delay, merge) for delay in (2, 5) for merge in MERGES)
    yield _muloco("muloco, 32 bits")
    yield _muloco("muloco, 2 bits", "eden:bits=2,scaled=true", {"memory": "residual:beta=0.9"})
    step = {"name": "compressed_step", "every": 5}
    yield _method("compressed step, eighth of a bit", "eden:bits=0.125", step, options={"memory": "none"})


METHODS: dict[str, Method] = {each.label: each for each in _methods()}


@dataclass(frozen=True)
class RegionsPlan:
    """The runs that are wanted.

    Args:
        steps: steps of a run, a multiple of 5, >= 15.
        workers: processes, 2 to 16.
        seeds: different seeds, at least one; rates are chosen by the first.
        only: labels of ``METHODS``; dense training is always among them. None: all of them.
        refit: the outer steps of DiLoCo in place of the methods.

    Raises:
        ConfigError: a value is outside its range.

    Example:
        >>> plan = RegionsPlan(steps=300, only=("diloco",))
        >>> [(job.settings.method, job.settings.recipe["lr"]) for job in plan.jobs([])][-2:]
        [('diloco', 0.001), ('diloco', 0.002)]
    """

    steps: int = 2000
    workers: int = 4
    seeds: tuple[int, ...] = (0, 1, 2)
    only: tuple[str, ...] | None = None
    refit: bool = False

    def __post_init__(self) -> None:
        whole = is_int(self.steps, 3 * EPOCHS) and self.steps % EPOCHS == 0
        require(whole, "steps", f"a multiple of {EPOCHS}, >= {3 * EPOCHS}", self.steps)
        most = EPOCHS * _task().steps_of_data()
        require(self.steps <= most, "steps", f"at most {most}, for which there is text", self.steps)
        require(is_int(self.workers, 2, _MOST_WORKERS), "workers", f"an integer in [2, {_MOST_WORKERS}]", self.workers)
        good = bool(self.seeds) and all(is_int(seed, 0, MOST_SEED) for seed in self.seeds)
        different = len({*self.seeds}) == len(self.seeds)
        require(good and different, "seeds", "different integers in [0, 2^63), at least one", self.seeds)
        require(not (self.only and self.refit), "only", "left out with refit", Verbatim("both"))
        for label in self.only or ():
            require(label in METHODS, "only", nearest(label, METHODS), label)

    @property
    def methods(self) -> list[Method]:
        """The methods of the table, dense training first."""
        return [each for label, each in METHODS.items() if not self.only or label in (DENSE, *self.only)]

    def jobs(self, made: Iterable[Record]) -> list[Job]:
        """Make the runs in the order in which they are to be made: those whose rates are known, and those that tell it.

        Args:
            made: results so far.
        """
        last = counted(made)
        if self.refit:
            found = [*self._refit(last)]
            return sorted(found, key=lambda job: self.seeds.index(job.settings.seed))
        tuning = [job for method in self.methods for job in self._tries(method)]
        chosen = [(method, self.rate_of(method, last)) for method in self.methods]
        runs = [
            self._job(method, seed, self.steps, rate)
            for seed in self.seeds
            for method, rate in chosen
            if rate is not None
        ]
        return [*tuning, *runs]

    def _tries(self, method: Method) -> list[Job]:
        """The runs that tell the rate of a method: a third as long, on the first seed."""
        steps = self.steps // (3 * EPOCHS) * EPOCHS
        return [self._job(method, self.seeds[0], steps, rate) for rate in RATES[_inner(method)]]

    def rate_of(self, method: Method, last: Mapping[str, Record]) -> float | None:
        """The best of the learning rates of a method; None if not all have been tried.

        Args:
            method: one of ``methods``.
            last: results by their id.
        """
        tries = self._tries(method)
        best = best_of(tries, [last.get(job.settings.id) for job in tries])
        return None if best is None else float(tries[best].settings.recipe["lr"])

    def diverged(self, method: Method, last: Mapping[str, Record]) -> Record | None:
        """The first of the shorter runs of a method that diverged at all its rates; None if it did not.

        Args:
            method: one of ``methods``.
            last: results by their id.
        """
        tries = self._tries(method)
        return last[tries[0].settings.id] if all_diverged(tries, last) else None

    def best_runs(self, method: Method, last: Mapping[str, Record]) -> tuple[float, dict[int, Record]]:
        """The runs of a method by seed: at its best rate, or while that is not known at the one with the most runs.

        Args:
            method: one of ``methods``.
            last: results by their id.
        """
        best = self.rate_of(method, last)
        found = {}
        for rate in RATES[_inner(method)] if best is None else (best,):
            jobs = {seed: self._job(method, seed, self.steps, rate) for seed in self.seeds}
            found[rate] = {seed: last[job.settings.id] for seed, job in jobs.items() if job.settings.id in last}
        rate = max(found, key=lambda each: len(found[each]))
        return rate, found[rate]

    def is_refit(self, record: Record) -> bool:
        """Return whether a run is one that ``refit`` compares: dense, or DiLoCo without compression, as long and at the
        middle rate. So one that was the best before others were tried is shown too.
        """
        dense = self._job(METHODS[DENSE], self.seeds[0], self.steps, RATES["adamw"][1], tuned=False).settings
        own, optimizer = record.settings, record.settings.optimizer or {}
        same = all(getattr(own, name) == getattr(dense, name) for name in ("task", "workers", "epochs", "recipe"))
        rounds = optimizer.get("name") in ("diloco", "dense_start") and (own.compressor or {}).get("name") == "none"
        return same and own.seed in self.seeds and (rounds or own.method == DENSE)

    def _job(self, method: Method, seed: int, steps: int, rate: float, *, tuned: bool = True) -> Job:
        recipe = {"steps": steps // EPOCHS, "lr": rate}
        return Job(
            settings_of(_task(), method, workers=self.workers, epochs=EPOCHS, recipe=recipe, seed=seed, tuned=tuned)
        )

    def _refit(self, last: Mapping[str, Record]) -> Iterator[Job]:
        """Yield dense training, the outer steps, and then periods and begins with the best of them, all at the middle
        inner rate.
        """
        rate = RATES["adamw"][1]

        def job(method: Method, seed: int) -> Job:
            return self._job(method, seed, self.steps, rate, tuned=False)

        first = [_outer(1.0, 0.0, EVERY, 0), *(_outer(lr, momentum, EVERY, 0) for momentum in MOMENTA for lr in LRS)]
        for seed in self.seeds:
            yield job(METHODS[DENSE], seed)
            yield from (job(each, seed) for each in first)
        tries = [job(each, self.seeds[0]) for each in first]
        best = best_of(tries, [last.get(each.settings.id) for each in tries])
        if best is not None:
            own = first[best].optimizer or {}
            more = [_outer(own["lr"], own["momentum"], every, 0) for every in PERIODS]
            more += [_outer(own["lr"], own["momentum"], EVERY, round(share * self.steps)) for share in STARTS]
            yield from (job(each, seed) for seed in self.seeds for each in more)


def _inner(method: Method) -> str:
    return str(method.recipe.get("optimizer", "adamw"))


def _outer(lr: float, momentum: float, every: int, dense: int) -> Method:
    """DiLoCo with an outer step, which begins after so many dense steps."""
    label = f"outer rate {lr}, momentum {momentum}, every {every}" + (f", after {dense} dense steps" if dense else "")
    own: dict[str, Any] = {"name": "dense_start", "dense": dense} if dense else {}
    made = _diloco(label, lr=lr, momentum=momentum, every=every, **own)
    # A run of the table is one of these, too, and is not made twice.
    return next((each for each in METHODS.values() if dataclasses.replace(each, label=label) == made), made)


@dataclass(frozen=True)
class RegionsRow:
    """The outcome of a method.

    Args:
        method: label of the method.
        rate: inner learning rate; None: it diverged at all of them, and what follows is of a shorter run.
        tuned: true: the rate is the best of those that are tried; false: they have not all been tried.
        losses: test losses at the end, one for each seed; NaN: it diverged.
        above: share by which their mean is above that of dense runs of the same seeds; None: some of these are missing.
        bits: bits that a worker sent, by parameter and step.
        seconds: seconds of a step.
    """

    method: str
    rate: float | None
    tuned: bool
    losses: tuple[float, ...]
    above: float | None
    bits: float
    seconds: float

    @property
    def texts(self) -> tuple[str, str, str, str, str]:
        """The inner rate, the number of seeds, the loss, how far it is above dense, and the bits, for tables."""
        rate = "all" if self.rate is None else f"{self.rate:g}"
        loss = fmean(self.losses)
        diverged = not math.isfinite(loss)
        above = "?" if self.above is None else f"{self.above:+.1%}"
        return (
            rate if self.tuned else f"{rate}, not tuned",
            f"{len(self.losses)}",
            "diverged" if diverged else f"{loss:.3f}",
            "" if diverged or self.method == DENSE else above,
            f"{self.bits:.4g}",
        )


def regions_rows(plan: RegionsPlan, made: Iterable[Record]) -> list[RegionsRow]:
    """Make a row of each method of the plan, or of each outer step with ``refit``, of which a run is there.

    Args:
        plan: the runs that are wanted; others are left out.
        made: results.
    """
    last = {key: record for key, record in counted(made).items() if record.status == "ok"}
    found: dict[str, tuple[float | None, bool, dict[int, Record]]] = {}
    if plan.refit:
        for record in filter(plan.is_refit, last.values()):
            rate = float(record.settings.recipe["lr"])
            found.setdefault(record.settings.method, (rate, False, {}))[2][record.settings.seed] = record
    else:
        for method in plan.methods:
            rate, runs = plan.best_runs(method, last)
            tuned = plan.rate_of(method, last) is not None
            tried = plan.diverged(method, last)
            if runs:
                found[method.label] = rate, tuned, runs
            elif tried is not None:
                found[method.label] = None, True, {tried.settings.seed: tried}
    dense = found.get(DENSE, (0.0, False, {}))[2]
    return [_row(label, *each, dense) for label, each in found.items()]


def _row(
    label: str, rate: float | None, tuned: bool, runs: Mapping[int, Record], dense: Mapping[int, Record]
) -> RegionsRow:
    losses = tuple(float(runs[seed].quality or math.nan) for seed in sorted(runs))
    above = None
    if all(seed in dense for seed in runs):
        share = fmean(losses) / fmean(float(dense[seed].quality or math.nan) for seed in runs) - 1
        above = share if math.isfinite(share) else None
    bits = fmean(bits_of(record) for record in runs.values())
    seconds = fmean(float(record.seconds.get("step", math.nan)) for record in runs.values())
    return RegionsRow(label, rate, tuned, losses, above, bits, seconds)


def bits_of(record: Record) -> float:
    """The bits that a worker sent, by parameter and step; of what all gather it sends a copy to each of the others.

    The parameters follow from the bytes of a dense exchange, an all-reduce in a ring of float32.
    """
    world = record.settings.workers
    parameters = (record.dense_bytes_per_step or math.nan) * world / (8 * (world - 1))
    return 8 * (record.bytes_per_step or 0.0) / parameters


def markdown(plan: RegionsPlan, rows: Sequence[RegionsRow]) -> str:
    """The table of the docs, with what was run above it."""
    what = f"{plan.steps:,} steps, {plan.workers} workers"
    lines = [f"{what}; test loss, mean of the seeds that are named:", ""]
    lines += ["| method | inner rate | seeds | loss | above dense | bits sent |", "|---|---:|---:|---:|---:|---:|"]
    lines += [f"| {' | '.join((row.method, *row.texts))} |" for row in rows]
    return "\n".join(lines) + "\n"
