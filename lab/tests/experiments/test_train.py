"""One training run on one worker: what it reports is what happened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from gradwire.compressors.casts.none import Identity
from gradwire_lab.experiments.process_figures import digest
from gradwire_lab.experiments.recipe import Recipe
from gradwire_lab.experiments.tasks.classification import Classification
from gradwire_lab.experiments.train import train
from gradwire_lab.experiments.training_method import Method


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def test_a_run_learns_repeats_and_is_watched() -> None:
    task, seen = Classification(), list[tuple[int, float]]()
    method = Method("none", Identity())
    run = train(task, method, 1, watch=lambda step, loss: seen.append((step, loss)))
    assert [step for step, _ in seen] == list(range(22))
    assert run.loss == pytest.approx(sum(loss for _, loss in seen) / 22)
    assert run.loss < 2.0
    assert run.quality > 0.3
    assert train(task, method, 1).digest == run.digest
    assert train(task, method, 1, seed=1).digest != run.digest
    assert set(run.seconds) == {"step", "compute", "compress", "communicate", "decompress"}
    assert run.seconds["compute"] > 0
    assert run.seconds["compress"] == 0.0


def test_scaling_the_loss_by_a_power_of_two_changes_nothing() -> None:
    task = Classification(recipe=Recipe(warmup=1))
    plain, scaled = (train(task, Method("none", Identity(), loss_scale=scale), 1) for scale in (1.0, 64.0))
    assert scaled.digest == plain.digest


def test_the_digest_sees_a_single_bit() -> None:
    model = torch.nn.Linear(3, 2)
    before = digest(model)
    with torch.no_grad():
        model.bias.view(torch.int32)[1] ^= 1
    assert digest(model) != before
