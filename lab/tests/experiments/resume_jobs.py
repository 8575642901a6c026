"""Work of the workers in the tests of resumed runs."""

from __future__ import annotations

import contextlib
import dataclasses
import resource
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from gradwire.errors import GroupError
from gradwire.registry import named_of
from gradwire_lab.experiments.data.base import Tensors
from gradwire_lab.experiments.method_text import method_of
from gradwire_lab.experiments.run_snapshots import RunSnapshots
from gradwire_lab.experiments.tasks import find_task
from gradwire_lab.experiments.tasks.base import Task
from gradwire_lab.experiments.tasks.classification import Classification
from gradwire_lab.experiments.train import Run, train
from gradwire_lab.experiments.training_method import Method
from lab.tests.experiments.narrow import narrowed


def memory_of_runs(count: int) -> list[Run]:
    """Equal runs, the first of them the first of this process."""
    return [train(Classification(), method_of("none"), 1) for _ in range(count)]


class InterruptionError(Exception):
    """A run ends here, between two steps."""


def interrupt_at(last: int) -> Callable[[int, float], None]:
    def watch(step: int, loss: float) -> None:
        if step == last:
            raise InterruptionError

    return watch


def brief(name: str, steps: int = 12) -> Task:
    """A task with so many steps in an epoch, of fewer images than usual."""
    task = narrowed(find_task(name)())
    data = task.data
    if name == "gpt":
        # Seven examples of a worker in three micro-batches.
        task.adjusted({"batch": 14, "micro": 3, "steps": steps})
        task.data = dataclasses.replace(data, test=data.test[:130])
    elif name == "language":
        task.data = dataclasses.replace(data, train=data.train[: 20 * (20 * steps + 1)], test=data.test[:250])
    else:
        task.adjusted({"batch": 16})
        train, test = data.train.batch(torch.arange(steps * 16)), data.test.batch(torch.arange(20))
        task.data = dataclasses.replace(data, train=Tensors(*train), test=Tensors(*test))
    return task


def flip(path: Path) -> None:
    """One bit in the middle of a file that holds tensors; torch reads it all the same."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    torch.load(path, weights_only=True)


def past_damage(folder: Path) -> tuple[str, str, int, list[str]]:
    """An unbroken run's digest, and the digest, first step and warnings of one that finds worker 1's part damaged."""
    task, method, steps = brief("classification"), method_of("topk"), list[int]()
    first, again = RunSnapshots(folder, {}, every=5), RunSnapshots(folder, {}, resume=True)
    whole = train(task, method, 1, snapshots=first)
    if dist.get_rank() == 1:
        flip(folder / "step-00000012" / "rank1.pt")
    dist.barrier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resumed = train(task, method, 1, snapshots=again, watch=lambda step, _: steps.append(step))
    return whole.digest, resumed.digest, steps[0], [str(each.message) for each in caught]


def one_full_disk(folder: Path) -> str:
    """The error of each worker where the disk of worker 1 alone is full."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, most))
        train(brief("classification"), method_of("topk"), 1, snapshots=RunSnapshots(folder, {}, every=5))
    except GroupError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    return ""


def interfaces(folder: Path) -> tuple[float | None, float | None]:
    """Bytes of a step by the interface's own count: of an unbroken run, and of one that was resumed in its epoch."""
    # Uncompressed, so that the acknowledgements of a busy machine, which come one by one, are few beside the payloads.
    task, method = Classification(), method_of("none")
    whole = train(task, method, 1, lab=True)
    with contextlib.suppress(InterruptionError):
        train(task, method, 1, lab=True, watch=interrupt_at(16), snapshots=RunSnapshots(folder, {}, every=5))
    again = RunSnapshots(folder, {}, every=5, resume=True)
    resumed = train(task, method, 1, lab=True, snapshots=again)
    assert resumed.resumed == 1
    return whole.interface_bytes_per_step, resumed.interface_bytes_per_step


def method_by(text: str, task: str) -> Method:
    """METHOD, METHOD by OPTIMIZER, METHOD in shards, METHOD in shards with WEIGHTS, or METHOD corrected: with learning
    rates that follow the noise of the code.
    """
    rest, _, weights = text.removesuffix(" corrected").partition(" with ")
    name, _, optimizer = rest.removesuffix(" in shards").partition(" by ")
    method = method_of(name, task)
    if rest.endswith(" in shards"):
        method = dataclasses.replace(method, parallel="fsdp2", weights=weights or None)
    if optimizer:
        return dataclasses.replace(method, optimizer=named_of(optimizer))
    options = {**method.options, "variance_correction": True}
    return dataclasses.replace(method, options=options) if text.endswith(" corrected") else method


def broken_and_whole(cases: list[tuple[str, str]], folder: Path) -> list[tuple[Run, Run]]:
    """Each method on its task: an unbroken run, and one that was interrupted within its second epoch and resumed."""
    found = []
    for number, (task, text) in enumerate(cases):
        method = method_by(text, task)
        place = folder / f"{task}-{number}"
        last = brief(task, 5).steps(1) + 3
        first = RunSnapshots(place, {"method": text}, every=3)
        if dist.get_rank() == 0:
            first.prepare()
        dist.barrier()
        whole = train(brief(task, 5), method, 2, seed=3)
        with contextlib.suppress(InterruptionError):
            train(brief(task, 5), method, 2, seed=3, watch=interrupt_at(last), snapshots=first)
        torch.manual_seed(99)
        second = RunSnapshots(place, {"method": text}, every=3, resume=True)
        found.append((whole, train(brief(task, 5), method, 2, seed=3, snapshots=second)))
    return found
