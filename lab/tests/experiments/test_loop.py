"""A step of a run: micro-batches add up to the batch, the exchange runs once, and autocast reaches the model."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.compressors.casts.none import Identity
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.errors import ConfigError
from gradwire_lab.experiments.data.base import Tensors
from gradwire_lab.experiments.launch import launch
from gradwire_lab.experiments.loop import add_gradients
from gradwire_lab.experiments.tasks.base import Task
from gradwire_lab.experiments.tasks.classification import Classification
from gradwire_lab.experiments.tasks.language import LanguageModelling
from gradwire_lab.experiments.train import train
from gradwire_lab.experiments.training_method import Method


def task_of(micro: int | None, **changes: object) -> Task:
    """Digits in three steps, with a model that has no norm over the batch: its gradient is a mean over examples."""
    task = Classification("vit").adjusted({"batch": 14, "micro": micro, "steps": 3, **changes})
    task.data = dataclasses.replace(task.data, test=Tensors(*task.data.test.batch(torch.arange(9))))
    return task


def gradients(micro: int | None) -> tuple[list[Tensor], float, int]:
    """On one worker: of its share of a batch, with the mean loss, and how often the model computed."""
    task, calls = task_of(micro), list[int]()
    torch.manual_seed(0)
    model = DistributedDataParallel(task.model())
    model.module.register_forward_hook(lambda _model, inputs, _out: calls.append(len(inputs[0])))
    x, y = next(task.shares(0, dist.get_rank(), dist.get_world_size()))
    loss = add_gradients(model, task, x, y)
    assert sum(calls) == len(x)
    return [param.grad for param in model.parameters() if param.grad is not None], loss, len(calls)


def sums_and_bytes() -> list[tuple[float, float, float]]:
    """The passes for each size of a micro-batch, and the relative distance of gradients and loss from the whole
    share's."""
    whole, loss, once = gradients(None)
    assert once == 1
    found = []
    for micro in (1, 3, 7, 100):
        parts, mean, passes = gradients(micro)
        apart = torch.stack([(a - b).norm() / b.norm() for a, b in zip(parts, whole, strict=True)])
        found.append((passes, float(apart.max()), abs(mean / loss - 1)))
    return found


def bytes_of_runs(methods: list[Method]) -> list[tuple[float, float]]:
    """The bytes that a worker sends in a step, whole and in micro-batches."""
    runs = [[train(task_of(micro), method, 1) for micro in (None, 2)] for method in methods]
    return [(whole.bytes_per_step, parts.bytes_per_step) for whole, parts in runs]


def test_micro_batches_add_up_to_the_whole_share() -> None:
    """A share of seven examples: the last micro-batch is smaller, and weighs less."""
    for found in launch(2, sums_and_bytes):
        assert [passes for passes, _, _ in found] == [7, 3, 1, 1]
        assert max(apart for _, apart, _ in found) < 1e-5
        assert max(loss for _, _, loss in found) < 1e-6


def test_the_exchange_runs_once_a_step() -> None:
    for found in launch(2, bytes_of_runs, [Method("none", Identity()), Method("qsgd", QSGD(bits=4))]):
        for whole, parts in found:
            assert whole == parts > 0


class Precision(nn.Module):
    """A layer, and the types of what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 1), list[torch.dtype]()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        self.seen.append(out.dtype)
        return out


@pytest.mark.parametrize(("autocast", "wanted"), [(False, torch.float32), (True, torch.bfloat16)])
def test_autocast_computes_in_bfloat16_and_keeps_float32(autocast: bool, wanted: torch.dtype) -> None:
    class Squares(Classification):
        def loss(self, output: Tensor, target: Tensor) -> Tensor:
            return (output - target).square().mean()

    task, model = Squares().adjusted({"autocast": autocast, "micro": 4}), Precision()
    add_gradients(model, task, torch.ones(8, 4), torch.ones(8, 1))
    assert model.seen == [wanted, wanted]
    assert model.layer.weight.grad is not None
    assert model.layer.weight.grad.dtype is torch.float32


def test_micro_batches_of_a_model_that_carries_its_state_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^Recipe\.micro must be None for lstm, which carries its state on, got 5$"):
        LanguageModelling().adjusted({"micro": 5}).model()
    assert LanguageModelling("gpt2").adjusted({"micro": 5}).model()
