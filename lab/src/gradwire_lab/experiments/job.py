"""A run as settings, and its record: the same whether a command, a job of many machines or a sweep makes it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire import registry
from gradwire.compressors.casts.none import Identity
from gradwire.engine import settings as exchange
from gradwire.errors import ConfigError, GradwireError, GroupError, nearest, require
from gradwire.frontends.setup import is_auto
from gradwire_lab.bench.machine import environment
from gradwire_lab.experiments.exchanging_optimizer import check_exchanging
from gradwire_lab.experiments.progress import Bar
from gradwire_lab.experiments.records import Point, Record, RunSettings
from gradwire_lab.experiments.run_snapshots import RunSnapshots, parameters_in
from gradwire_lab.experiments.start import check_start, digest_of_start
from gradwire_lab.experiments.synchronisation import CORRECTED
from gradwire_lab.experiments.tasks import find_task
from gradwire_lab.experiments.tasks.base import Task
from gradwire_lab.experiments.torchhooks import check_hook
from gradwire_lab.experiments.train import Run, train
from gradwire_lab.experiments.training_method import PARALLEL, Method

__all__ = [
    "BACKENDS",
    "MOST_SEED",
    "PLAIN",
    "Job",
    "begun",
    "device_of",
    "failed",
    "is_plain",
    "perform",
    "settings_of",
    "stopped",
]

BACKENDS = {"gloo": "cpu", "nccl": "cuda"}
"""The device whose gradients each one carries."""

MOST_SEED = 2**63 - 1
"""Largest seed that torch's generators and a line of results hold."""

FIXED = ("epochs",)
"""Settings that a method's recipe leaves to the task."""

PLAIN = "texts, finite numbers, true or false, and lists or tables of these"
"""Values that ``is_plain`` takes, in words."""


@dataclass(frozen=True)
class Job:
    """The job that a worker is told to do.

    Args:
        settings: settings of the run.
        folder: folder of real data; None: the embedded data.
        checkpoint: folder in which the run is saved; None: it is not saved.
        every: steps after which it is saved within an epoch.
        resume: go on from what is saved there.
        start: path of the parameters with which the run begins, as for ``parameters_in``; None: the seed draws them.
    """

    settings: RunSettings
    folder: Path | None = None
    checkpoint: Path | None = None
    every: int | None = None
    resume: bool = False
    start: Path | None = None

    def task(self) -> Task:
        """The task with the recipe of these settings.

        Raises:
            ConfigError: no such task, no data.
        """
        kind = find_task(self.settings.task)
        made: Task = kind(self.settings.model.removesuffix("_small"), self.folder)
        return made.adjusted({name: _tuples(value) for name, value in self.settings.recipe.items()})

    def method(self) -> Method:
        """The method by which gradients are exchanged.

        Raises:
            ConfigError: no such compressor, or none at all.
        """
        known = self.settings
        if known.hook is not None:
            return Method(known.method, Identity(), known.options, known.loss_scale, hook=known.hook)
        require(known.compressor is not None, "RunSettings.compressor", "a configuration", None)
        auto = str((known.compressor or {}).get("name"))
        if is_auto(auto):
            made = Method(known.method, Identity(), known.options, known.loss_scale, auto=auto)
        else:
            compressor = registry.from_config("compressors", known.compressor or {})
            made = Method(known.method, compressor, known.options, known.loss_scale, optimizer=known.optimizer)
        return dataclasses.replace(made, parallel=known.parallel or PARALLEL[0], weights=known.weights)

    def parameters(self) -> dict[str, Tensor] | None:
        """The parameters that training begins with; None if the seed draws them.

        Raises:
            ConfigError: the parameters cannot be read, as for ``parameters_in``, or are not those of the settings any
                more.
        """
        if self.start is None:
            return None
        found = parameters_in(self.start)
        require(
            digest_of_start(found) == self.settings.start, "start", "what it was when the run was set up", self.start
        )
        return found

    def snapshots(self) -> RunSnapshots | None:
        """The checkpoints of the run; None if it is not saved."""
        if self.checkpoint is None:
            return None
        told = {
            name: value for name, value in dataclasses.asdict(self.settings).items() if name not in ("link", "tuned")
        }
        return RunSnapshots(self.checkpoint, told, self.every, self.resume)


def settings_of(
    task: Task,
    method: Method,
    *,
    workers: int,
    epochs: int | None = None,
    recipe: Mapping[str, Any] | None = None,
    **others: Any,
) -> RunSettings:
    """The settings of training a task with a method.

    Args:
        task: task with its own recipe.
        method: method whose changes of the recipe go on top of the task's.
        workers: processes.
        epochs: number of epochs, >= 1; None: the number in the recipe.
        recipe: changes that go on top of all others.
        others: the rest of ``RunSettings``.

    Raises:
        ConfigError: a change of the recipe that cannot be, or an option that ``compress_ddp`` does not take.
    """
    _check(method)
    changes = {**method.recipe, **(recipe or {})}
    for what, values in (("recipe", changes), ("options", method.options)):
        for name, value in values.items():
            require(is_plain(value), f"{what}.{name}", PLAIN, value)
    known = [name for each in dataclasses.fields(task.recipe) if (name := each.name) not in FIXED]
    for name in changes:
        require(name in known, "recipe", f"one of {', '.join(known)}", name)
    made = dataclasses.replace(task.recipe, **{name: _tuples(value) for name, value in changes.items()})
    if method.optimizer is not None:
        check_exchanging(method.optimizer, made)
    return RunSettings(
        task.name,
        task.model_name,
        task.data.name,
        method.label,
        {"name": method.auto} if method.auto else method.compressor.to_config() if method.hook is None else None,
        dict(method.options),
        method.loss_scale,
        changes,
        workers,
        epochs=epochs or made.epochs,
        data_digest=None if task.small else digest_of(task.data),
        optimizer=None if method.optimizer is None else dict(method.optimizer),
        hook=None if method.hook is None else dict(method.hook),
        parallel=None if method.parallel == PARALLEL[0] else method.parallel,
        weights=method.weights,
        **others,
    )


def begun(task: Task, start: Path | None) -> str | None:
    """The ``RunSettings.start`` of a run that begins with saved parameters; None if there are none.

    Args:
        task: task to whose model the parameters must belong.
        start: path of the parameters, as for ``parameters_in``.

    Raises:
        ConfigError: the parameters cannot be read, as for ``parameters_in``, or belong to another model.
    """
    if start is None:
        return None
    params = parameters_in(start)
    check_start(params, task.model("meta"), task.model_name)
    return digest_of_start(params)


def is_plain(value: object) -> bool:
    """Return whether JSON gives a value back unchanged.

    >>> is_plain({"lr": [0.1, None]}), is_plain(float("inf"))
    (True, False)
    """
    if isinstance(value, dict):
        return all(isinstance(name, str) and is_plain(each) for name, each in value.items())
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def digest_of(data: Any) -> str:
    """A SHA-256 of the data of a task: its own digest, or that of all its tensors; for files read later that of their
    names and sizes.
    """
    own = getattr(data, "digest", None)
    if isinstance(own, str):
        return own
    sha = hashlib.sha256()
    for part in _parts(data):
        sha.update(part)
    return sha.hexdigest()


def _parts(data: Any) -> Iterator[bytes]:
    if dataclasses.is_dataclass(data):
        for each in dataclasses.fields(data):
            yield from _parts(getattr(data, each.name))
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _parts(value)
    elif isinstance(data, torch.Tensor):
        yield f"{tuple(data.shape)} {data.dtype}\n".encode()
        yield data.contiguous().numpy().tobytes()
    elif isinstance(data, Path):
        yield f"{data.parent.name}/{data.name} {data.stat().st_size}\n".encode()
    else:
        yield f"{data!r}\n".encode()


def _check(method: Method) -> None:
    """Refuse settings that every worker would refuse."""
    require(method.parallel in PARALLEL, "parallel", " or ".join(PARALLEL), method.parallel)
    sharded = method.parallel != PARALLEL[0]
    require(sharded or method.weights is None, "weights", "None without parallel fsdp2", method.weights)
    exchanging = method.hook or method.optimizer
    require(not (sharded and exchanging), "parallel", "ddp with a hook of torch or with an optimizer", method.parallel)
    # It would be divided out before the optimizer compresses anything.
    unscaled = method.optimizer is None or method.loss_scale == 1.0
    require(unscaled, "loss_scale", "1 with an optimizer that exchanges", method.loss_scale)
    if method.weights is not None:
        registry.build("compressors", method.weights)
    if method.hook is not None:
        check_hook(method.hook)
        require(not method.options, "options", "none with a hook of torch", dict(method.options))
        require(method.optimizer is None, "optimizer", "none with a hook of torch", method.optimizer)
        return
    known, others = exchange.Settings.split(method.options)
    corrected = others.pop(CORRECTED, None)
    if corrected is not None:
        allowed = "true or false, and false with an optimizer that exchanges"
        good = isinstance(corrected, bool) and not (corrected and method.optimizer)
        require(good, f"options.{CORRECTED}", allowed, corrected)
    for name in others:
        raise ConfigError(f"option {name!r} is none of compress_ddp: {nearest(name, vars(known))}")
    known.check()
    known.policy()
    for place, given in (("memory", known.memory), ("strategies", known.strategy)):
        if isinstance(given, str):
            registry.build(place, given)


def _tuples(value: Any) -> Any:
    """Convert lists to the tuples of a recipe, because JSON has only lists."""
    return tuple(value) if isinstance(value, list) else value


def device_of(backend: str, device: str | None) -> str:
    """The device that belongs to a backend.

    Raises:
        ConfigError: the backend carries the gradients of another device, or there is no GPU.
    """
    wanted = BACKENDS[backend]
    given = device or wanted
    require(given in BACKENDS.values(), "device", "cpu or cuda", given)
    require(given == wanted, "device", f"{wanted}, whose gradients {backend} carries", given)
    if given == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda needs a GPU, and torch sees none")
    return given


def perform(job: Job, shown: bool = False, epochs: Path | None = None) -> Record | None:
    """Make the run on each worker of the default group; return its record on worker 0, None on the others.

    Args:
        job: the same on all workers.
        shown: draw a progress bar, on worker 0.
        epochs: file to which worker 0 appends each epoch when it has ended, for ``stopped``.

    Raises:
        ConfigError, GroupError: ``train`` refuses the settings, or a worker failed.
    """
    settings, began, started = job.settings, time.perf_counter(), _now()
    require(
        settings.workers == dist.get_world_size(),
        "workers",
        f"{dist.get_world_size()}, as the group has",
        settings.workers,
    )
    task, first = job.task(), dist.get_rank() == 0
    device = settings.device if settings.device == "cpu" else f"cuda:{torch.cuda.current_device()}"
    with Bar(task, settings.method, settings.epochs, shown=shown and first) as bar:

        def tell(point: Point) -> None:
            if epochs is not None and first:
                with epochs.open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps(dataclasses.asdict(point))}\n")
            bar.point(point)

        run = train(
            task,
            job.method(),
            settings.epochs,
            seed=settings.seed,
            watch=bar.step,
            device=device,
            lab=settings.link != "none",
            tell=tell,
            snapshots=job.snapshots(),
            start=job.parameters(),
        )
    runs: list[Any] = [None] * settings.workers
    dist.all_gather_object(runs, run)
    return _record(settings, task, runs, started, time.perf_counter() - began) if first else None


def _record(settings: RunSettings, task: Task, runs: Sequence[Run], started: str, wall: float) -> Record:
    mine, identical = runs[0], len({run.digest for run in runs}) == 1
    largest = max(runs, key=lambda run: run.peak_rss_bytes)
    interface = [run.interface_bytes_per_step for run in runs if run.interface_bytes_per_step is not None]
    return Record(
        settings,
        task.measure,
        task.higher_is_better,
        status="ok" if identical else "failed",
        error="" if identical else "the workers' parameters differ",
        quality=mine.quality,
        measures=mine.measures,
        baselines=task.baselines(),
        history=mine.history,
        steps=mine.steps,
        examples_per_second=mine.examples_per_second,
        seconds=mine.seconds,
        bytes_per_step=mine.bytes_per_step,
        unpacked_bytes_per_step=mine.unpacked_bytes_per_step,
        dense_bytes_per_step=mine.dense_bytes_per_step,
        interface_bytes_per_step=sum(interface) / len(interface) if interface else None,
        state_bytes=max(run.state_bytes for run in runs),
        peak_rss_bytes=largest.peak_rss_bytes,
        start_rss_bytes=largest.start_rss_bytes,
        nonfinite_steps=mine.nonfinite_steps,
        identical=identical,
        digest=mine.digest,
        environment=environment(),
        started=started,
        resumed=mine.resumed,
        wall_seconds=wall,
        data_digest=digest_of(task.data),
        decisions=mine.decisions,
    )


def stopped(job: Job, epochs: Path) -> Record:
    """The record of a run that the user stopped, with the epochs that had ended.

    Args:
        job: job of the run.
        epochs: file of ``perform``.
    """
    # The last line may have been cut.
    lines = epochs.read_text(encoding="utf-8").split("\n")[:-1] if epochs.exists() else []
    history = [Point(**json.loads(line)) for line in lines]
    when = f"after epoch {history[-1].epoch} of {job.settings.epochs}" if history else "before an epoch had ended"
    made = failed(job, GroupError(f"stopped {when}"))
    return dataclasses.replace(made, history=history, steps=history[-1].step if history else 0)


def failed(job: Job, error: Exception) -> Record:
    """The record of a run that ended early; the kind of an unexpected error is part of it."""
    task = job.task()
    said = str(error) if isinstance(error, GradwireError) else f"{type(error).__name__}: {error}"
    return Record(
        job.settings,
        task.measure,
        task.higher_is_better,
        status="failed",
        error=" ".join(said.split()),
        environment=environment(),
        started=_now(),
        data_digest=digest_of(task.data),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
