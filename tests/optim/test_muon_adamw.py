"""Muon with AdamW in one optimizer, and MuLoCo as a recipe of DiLoCo, over real Gloo processes."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gradwire.errors import ConfigError
from gradwire.optim import DiLoCo, MuonAdamW
from gradwire.testing.processes import run_ranks
from tests.cases import together
from tests.optim.jobs import forward, loss_of, model_of, parameters

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")

LR = 0.02


def _both(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Two optimizers of torch for the same parameters."""
    matrices = [param for param in model.parameters() if param.dim() == 2]
    rest = [param for param in model.parameters() if param.dim() != 2]
    muon = torch.optim.Muon(matrices, lr=LR, weight_decay=1e-4, momentum=0.9, nesterov=False)
    return [muon, torch.optim.AdamW(rest, lr=LR / 20, betas=(0.9, 0.99), weight_decay=1e-4)]


def _slower(step: int) -> float:
    return 1 / (1 + step)


def test_it_makes_the_steps_of_both() -> None:
    model, alone = model_of(), model_of()
    optimizer, parts = MuonAdamW(model.named_parameters(), lr=LR), _both(alone)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _slower)
    others = [torch.optim.lr_scheduler.LambdaLR(part, _slower) for part in parts]
    for step in range(5):
        forward(model, optimizer, step, 0).backward()
        optimizer.step()
        alone.zero_grad()
        forward(alone, parts[0], step, 0).backward()
        for part in parts:
            part.step()
        for each in (schedule, *others):
            each.step()
        # The gradients of what is AdamW's were not cleared by Muon's ``zero_grad``.
        alone.zero_grad()
        assert parameters(model) == parameters(alone)


def test_it_goes_on_from_a_checkpoint() -> None:
    model, again = model_of(), model_of(seed=9)
    optimizer, other = MuonAdamW(model.named_parameters()), MuonAdamW(again.named_parameters())
    for step in range(6):
        if step == 3:
            again.load_state_dict(model.state_dict())
            other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        forward(model, optimizer, step, 0).backward()
        optimizer.step()
        if step >= 3:
            forward(again, other, step, 0).backward()
            other.step()
    assert parameters(again) == parameters(model)


def test_embeddings_and_head_are_adamws_and_a_function_may_say_otherwise() -> None:
    model = nn.ModuleDict(
        {"words": nn.Embedding(8, 4), "blocks": nn.Sequential(nn.Linear(4, 4)), "head": nn.Linear(4, 8)}
    )
    found = [group["param_names"] for group in MuonAdamW(model.named_parameters()).param_groups]
    assert found == [["blocks.0.weight"], ["words.weight", "blocks.0.bias", "head.weight", "head.bias"]]
    told = MuonAdamW(model.named_parameters(), matrix=lambda *pair: pair[0] == "head.weight")
    assert told.param_groups[0]["param_names"] == ["head.weight"]


@together
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"params": [nn.Parameter(torch.ones(2, 2))]}, "names and parameters"),
        ({"params": [("bias", nn.Parameter(torch.ones(2)))]}, "some with a matrix for Muon"),
        ({"matrix": lambda *_: True}, "MuonAdamW:"),
        ({"lr": -1.0}, "MuonAdamW.lr must be a finite number >= 0, got -1.0"),
        ({"betas": (0.9, 1.5)}, "MuonAdamW:"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    given = {"params": model_of().named_parameters(), **change}
    with pytest.raises(ConfigError, match=re.escape(said)):
        MuonAdamW(**given)


def test_no_group_is_added_later() -> None:
    optimizer = MuonAdamW(model_of().named_parameters())
    with pytest.raises(ConfigError, match="must be given all parameters when it is made"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, 2))]})


def _by_hand(rank: int) -> float:
    """The largest difference of MuLoCo in float32 from the algorithm as it is written."""
    model, alone = model_of(), model_of()
    optimizer = DiLoCo.muloco(MuonAdamW(model.named_parameters(), lr=LR), every=3, lr=0.7, momentum=0.6)
    parts = _both(alone)
    agreed = [param.detach().clone() for param in alone.parameters()]
    velocity = [torch.zeros_like(param) for param in agreed]
    apart = 0.0
    for step in range(9):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
        alone.zero_grad()
        forward(alone, parts[0], step, rank).backward()
        for part in parts:
            part.step()
        if step % 3 != 2:
            continue
        for param, theirs, met, moved in zip(alone.parameters(), model.parameters(), agreed, velocity, strict=True):
            change = met - param.detach()
            dist.all_reduce(change)
            change /= dist.get_world_size()
            moved.mul_(0.6).add_(change)
            met.sub_(0.7 * (change + 0.6 * moved))
            apart = max(apart, float((met - theirs.detach()).abs().max()))
            # Muon rounds to bfloat16, by which a difference in the last bit of float32 would grow.
            met.copy_(theirs.detach())
            with torch.no_grad():
                param.copy_(met)
    return apart


def test_muloco_is_the_algorithm_as_it_is_written() -> None:
    assert max(run_ranks(2, _by_hand)) < 1e-5


def _train(rank: int, bits: float | None, options: dict[str, Any]) -> dict[str, Any]:
    model = model_of(seed=3 + rank)
    optimizer = DiLoCo.muloco(MuonAdamW(model.named_parameters(), lr=LR), every=8, bits=bits, min_numel=0, **options)
    for step in range(80):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
    optimizer.synchronize()
    residual = optimizer.metrics()["residual_norm"]
    told = {"end": parameters(model), "loss": loss_of(model), "sent": optimizer.metrics()["bytes_sent"]}
    return {**told, "residual": float(residual)}


@pytest.mark.parametrize("streams", [{}, {"fragments": 2, "delay": 2}])
def test_two_bits_learn_as_32_do_with_a_residual_of_the_changes(streams: dict[str, Any]) -> None:
    two, full = (run_ranks(2, _train, bits, streams) for bits in (2, None))
    assert two[0]["end"] == two[1]["end"]
    assert two[0]["loss"] < full[0]["loss"] + 0.1 < loss_of(model_of()) - 0.5
    assert two[0]["sent"] < full[0]["sent"] / 8
    assert two[0]["residual"] > 0
    assert full[0]["residual"] == 0


def test_a_memory_without_bits_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory must be left out without bits, where nothing is kept, got one"):
        DiLoCo.muloco(MuonAdamW(model_of().named_parameters()), memory="residual")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"momentum": 1.5}, "MuonAdamW.momentum must be in [0, 1), got 1.5"),
        ({"lr": "a"}, "MuonAdamW.lr must be a finite number >= 0, got 'a'"),
        ({"adamw_lr": -1.0}, "MuonAdamW.adamw_lr must be a finite number >= 0, got -1.0"),
    ],
)
def test_bad_values_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        MuonAdamW(model_of().named_parameters(), **options)


def test_a_scheduler_cycles_the_momentum_of_muon_alone() -> None:
    optimizer = MuonAdamW(model_of().named_parameters(), betas=(0.8, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.02, 0.001], total_steps=10)
    for step in range(4):
        forward(model_of(), optimizer, step, 0)
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["momentum"] != 0.9
    assert optimizer.param_groups[1]["betas"] == (0.8, 0.99)
    again = MuonAdamW(model_of().named_parameters())
    cyclic = torch.optim.lr_scheduler.CyclicLR(again, 0.01, 0.02)
    again.step()
    cyclic.step()
    assert again.param_groups[0]["momentum"] != 0.9
