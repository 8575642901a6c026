"""Every task of the folder keeps the contract: shares, steps, measures, and a model that learns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.compressors.casts.none import Identity
from gradwire.errors import ConfigError
from gradwire_lab.experiments.models import names, trained
from gradwire_lab.experiments.tasks import find_task, task_names
from gradwire_lab.experiments.tasks.base import Task
from gradwire_lab.experiments.train import train
from gradwire_lab.experiments.training_method import Method
from lab.tests.experiments.narrow import narrowed

TASKS = task_names()
BETTER_THAN = {
    "classification": "chance",
    "gpt": "unigram",
    "gpt_tune": "unigram",
    "language": "unigram",
    "recommendation": "chance",
}
"""The quality that one epoch beats; marking defects takes longer, and begins with marking none."""


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {name: narrowed(find_task(name)()) for name in TASKS}


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def first(task: Task, epoch: int, rank: int, world: int, count: int = 3) -> list[tuple[Tensor, Tensor]]:
    shares = task.shares(epoch, rank, world)
    return [next(shares) for _ in range(count)]


def test_the_surveys_four_tasks_are_there_and_a_transformers() -> None:
    assert TASKS == ("classification", "gpt", "gpt_tune", "language", "recommendation", "segmentation")
    assert {model for name in TASKS for model in find_task(name).MODELS} == set(names())


@pytest.mark.parametrize("name", TASKS)
def test_workers_share_each_batch_without_overlap(tasks: dict[str, Task], name: str) -> None:
    task = tasks[name]
    for (x, y), (x0, y0), (x1, y1) in zip(
        first(task, 3, 0, 1), first(task, 3, 0, 2), first(task, 3, 1, 2), strict=True
    ):
        assert len(x) == task.recipe.batch
        assert torch.equal(x, torch.stack([x0, x1], 1).flatten(0, 1))
        assert torch.equal(y, torch.stack([y0, y1], 1).flatten(0, 1))


@pytest.mark.parametrize("name", TASKS)
def test_steps_are_counted_and_epochs_repeat(tasks: dict[str, Task], name: str) -> None:
    task = tasks[name]
    assert sum(1 for _ in task.shares(0, 0, 4)) == task.steps(1) == task.steps(3) / 3
    (x, _), (again, _), (other, _) = (first(task, epoch, 0, 2, 1)[0] for epoch in (0, 0, 1))
    assert torch.equal(x, again)
    assert torch.equal(x, other) == (name == "language")


@pytest.mark.parametrize("name", TASKS)
def test_a_small_model_soon_learns(tasks: dict[str, Task], name: str, alone: None) -> None:
    task, losses, epochs = tasks[name], list[float](), 1 if name in BETTER_THAN else 4
    run = train(task, Method("none", Identity()), epochs, watch=lambda _step, loss: losses.append(loss))
    assert len(losses) == task.steps(epochs)
    assert run.loss < losses[0]
    assert run.measures[task.measure] == run.quality
    assert task.shown(run.quality)
    if name in BETTER_THAN:
        trivial = task.baselines()[BETTER_THAN[name]]
        assert (run.quality > trivial) == task.higher_is_better
        assert (run.quality < trivial) != task.higher_is_better


@pytest.mark.parametrize("name", TASKS)
def test_every_model_of_a_task_can_be_trained_on_its_data(name: str) -> None:
    cls = find_task(name)
    for model in cls.MODELS:
        task = cls(model)
        torch.manual_seed(0)
        made = task.model()
        x, y = first(task, 0, 0, 8, 1)[0]
        task.loss(made(x), y).backward()
        assert all(param.grad is not None for param in trained(made).values()), model
        assert task.model_name == f"{model}_small"


@pytest.mark.parametrize("name", TASKS)
def test_a_batch_is_no_larger_than_the_data(name: str) -> None:
    task = find_task(name)()
    most, said = task.largest_batch(), task.data.name
    assert task.adjusted({"batch": most}).steps(1) == 1 == sum(1 for _ in task.shares(0, 0, 1))
    assert task.adjusted({"batch": most + 1}).steps(1) < 1
    with pytest.raises(ConfigError, match=rf"Recipe\.batch must be at most {most}, .* {said} .*, got {most + 1}"):
        task.shares(0, 0, 1)


@pytest.mark.parametrize("name", TASKS)
def test_every_worker_has_a_part_of_every_batch(name: str) -> None:
    task = find_task(name)().adjusted({"batch": 3})
    assert [len(first(task, 0, rank, 3, 1)[0][0]) for rank in range(3)] == [1, 1, 1]
    with pytest.raises(ConfigError, match="workers must be at most 3, the examples of a batch, got 4"):
        task.shares(0, 3, 4)


@pytest.mark.parametrize("name", TASKS)
def test_the_recipe_may_end_an_epoch_early(tasks: dict[str, Task], name: str) -> None:
    task = find_task(name)().adjusted({"steps": 3})
    assert sum(1 for _ in task.shares(1, 0, 2)) == task.steps(1) == task.steps(2) / 2 == 3
    for (x, _), (all_of_it, _) in zip(first(task, 1, 0, 2), first(tasks[name], 1, 0, 2), strict=True):
        assert torch.equal(x, all_of_it)


def test_a_model_of_another_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="model 'lstm' is of another task than classification"):
        find_task("classification")("lstm")
    with pytest.raises(ConfigError, match="unknown task 'segment': did you mean 'segmentation'"):
        find_task("segment")


def test_what_a_method_needs_changed_changes_nothing_else(tasks: dict[str, Task]) -> None:
    for name in TASKS:
        task = find_task(name)()
        before = task.recipe
        assert task.adjusted({}).recipe is before
        assert task.adjusted({"momentum": 0.5}).recipe == dataclasses.replace(before, momentum=0.5)
