"""What the workers of the test of resumed runs do."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from gradwire import registry
from gradwire.bench.snapshots import Snapshots
from gradwire.bench.tasks.base import Task
from gradwire.bench.train import Run, train
from gradwire.bench.written import method_of


class InterruptionError(Exception):
    """A run ends here, between two steps."""


def interrupt_at(last: int) -> Callable[[int, float], None]:
    def watch(step: int, loss: float) -> None:
        if step == last:
            raise InterruptionError

    return watch


def brief(name: str) -> Task:
    """A task with a handful of steps in an epoch."""
    task: Task = registry.find("bench.tasks", name)()
    if name == "language":
        task.data = dataclasses.replace(task.data, train=task.data.train[:4000], test=task.data.test[:500])
    return task


def broken_and_whole(cases: list[tuple[str, str]], folder: Path) -> list[tuple[Run, Run]]:
    """Each method on its task: an unbroken run, and one that was interrupted within its second epoch and resumed."""
    found = []
    for number, (task, text) in enumerate(cases):
        method = method_of(text, task)
        place = folder / f"{task}-{number}"
        last = brief(task).steps(1) + 4
        first = Snapshots(place, {"method": text}, every=3)
        if dist.get_rank() == 0:
            first.prepare()
        dist.barrier()
        whole = train(brief(task), method, 2, seed=3)
        with contextlib.suppress(InterruptionError):
            train(brief(task), method, 2, seed=3, watch=interrupt_at(last), snapshots=first)
        torch.manual_seed(99)
        second = Snapshots(place, {"method": text}, every=3, resume=True)
        found.append((whole, train(brief(task), method, 2, seed=3, snapshots=second)))
    return found
