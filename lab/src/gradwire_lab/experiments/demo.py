"""Demonstration: a task trained with each method, side by side, on workers of this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from gradwire.errors import GroupError, is_int, require
from gradwire.version import __version__
from gradwire_lab.experiments.launch import launch
from gradwire_lab.experiments.progress import Bars
from gradwire_lab.experiments.tasks import find_task
from gradwire_lab.experiments.tasks.base import Task
from gradwire_lab.experiments.train import Run, train
from gradwire_lab.experiments.training_method import Method

__all__ = ["DemoReport", "compare"]


@dataclass(frozen=True)
class DemoReport:
    """The reports of all workers: one row for each method, ready for JSON."""

    task: str
    measure: str
    workers: int
    epochs: int
    steps: int
    rows: list[dict[str, Any]]
    versions: dict[str, str] = field(default_factory=lambda: {"gradwire": __version__, "torch": torch.__version__})

    @property
    def apart(self) -> list[str]:
        """The methods after which the workers' parameters differed in some bit."""
        return [row["method"] for row in self.rows if not row["parameters_identical"]]

    def check(self) -> None:
        """Raise unless all workers ended every run with the same bits.

        Raises:
            GroupError: the workers ended a run with different bits.
        """
        if self.apart:
            raise GroupError(f"workers ended with different parameters after {', '.join(self.apart)}")


def compare(
    methods: Sequence[Method], *, workers: int = 2, epochs: int | None = None, task: str = "classification"
) -> DemoReport:
    """Train with each method in turn and compare the results.

    Args:
        methods: methods to train with; their labels become the rows' names.
        workers: processes on this machine, 2 to 64.
        epochs: number of epochs, >= 1; None: the number in the task's recipe.
        task: a file of ``gradwire_lab.experiments.tasks``.

    Raises:
        ConfigError: no such task, a number out of range, no data.
        GroupError: a worker failed.
    """
    require(is_int(workers, 2, 64), "workers", "an integer in [2, 64]", workers)
    require(epochs is None or is_int(epochs, 1), "epochs", "an integer >= 1", epochs)
    made = task_of(task)
    passes = epochs or made.recipe.epochs
    results = launch(workers, run_all, methods, passes, task)
    rows = [row(method, runs) for method, runs in zip(methods, zip(*results, strict=True), strict=True)]
    for each in rows:
        each["shown"] = made.shown(each["quality"])
    return DemoReport(made.data.name, made.measure, workers, passes, made.steps(passes), rows)


def task_of(name: str) -> Task:
    """Make a task with its embedded data."""
    task: Task = find_task(name)()
    return task


def run_all(methods: Sequence[Method], epochs: int, task: str) -> list[Run]:
    """Make the runs of all methods, on each worker; worker 0 shows the progress."""
    steps = task_of(task).steps(epochs)
    with Bars(steps, shown=dist.get_rank() == 0) as bars:
        return [train(task_of(task).adjusted(m.recipe), m, epochs, watch=bars.begin(m.label)) for m in methods]


def row(method: Method, runs: Sequence[Run]) -> dict[str, Any]:
    """Make the row of one method: worker 0's figures, and whether all workers agree."""
    return {
        "method": method.label,
        "compressor": method.compressor.to_config(),
        "options": dict(method.options),
        "loss_scale": method.loss_scale,
        **dataclasses.asdict(runs[0]),
        "parameters_identical": len({run.digest for run in runs}) == 1,
    }
