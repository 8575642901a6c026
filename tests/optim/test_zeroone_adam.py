"""0/1 Adam over real Gloo processes."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from gradwire.optim import ZeroOneAdam
from gradwire.testing.processes import run_ranks
from tests.optim.jobs import (
    adamw,
    dense_loss,
    forward,
    loss_of,
    make,
    model_of,
    parameters,
    poisoned,
    refused,
    resume,
    train,
)

LOCAL = {
    "compressor": "topk",
    "ratio": 0.1,
    "min_numel": 0,
    "var_freeze_step": 40,
    "var_update_scaler": 4,
    "local_step_scaler": 20,
    "local_step_clipper": 4,
}


def test_it_learns_nearly_like_adam_and_agrees_whenever_it_says_so() -> None:
    results = run_ranks(2, train, "zeroone_adam", 100, LOCAL)
    dense = dense_loss(adamw, 100)
    assert results[0]["digests"] == results[1]["digests"]
    # 40 steps that learn v, 20 of distance 1, 10 of distance 2, 5 of distance 4.
    assert len(results[0]["digests"]) == 75
    assert results[0]["loss"] < dense + 0.2 < loss_of(model_of()) - 1.0


def _schedule(rank: int) -> list[int]:
    """At which steps v is learned, and how many bytes a step sends."""
    model = model_of()
    optimizer = make("zeroone_adam", model, {**LOCAL, "var_update_scaler": 2, "local_step_scaler": 4})
    learned, before = [], 0
    for step in range(1, 41):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
        if optimizer.progress["updates"] > before:
            learned.append(step)
        before = optimizer.progress["updates"]
    return learned


def test_the_distance_between_exact_steps_doubles() -> None:
    assert run_ranks(1, _schedule)[0] == [1, 2, 4, 6, 10, 14, 22, 30]


def _bytes(rank: int) -> list[int]:
    model = model_of()
    optimizer = make("zeroone_adam", model, {**LOCAL, "var_freeze_step": 2, "local_step_scaler": 2})
    sent, steps = [], []
    for step in range(1, 15):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
        sent.append(optimizer.metrics()["bytes_sent"])
        if step > 2 and sent[-1] > sent[-2]:
            steps.append(step)
    return steps


def test_local_steps_send_nothing() -> None:
    assert run_ranks(2, _bytes)[0] == [3, 4, 6, 10, 14]


def _plans(rank: int) -> list[int]:
    """Return the number of plans that a rank makes in each step; rank 1 lacks a gradient in the local ones."""
    model = model_of()
    optimizer = make("zeroone_adam", model, {**LOCAL, "var_freeze_step": 2, "local_step_scaler": 2})
    made = []
    for step in range(1, 11):
        forward(model, optimizer, step, rank).backward()
        if rank == 1 and step in (5, 7, 8, 9):
            model.get_parameter("0.bias").grad = None
        exchange = optimizer.exchange
        with patch.object(exchange, "plan", wraps=exchange.plan) as plan:
            optimizer.step()
        made.append(plan.call_count)
    return made


def test_a_rank_that_steps_alone_makes_no_plan() -> None:
    """A plan is made by all ranks together, because strategies ask each other then."""
    first, second = run_ranks(2, _plans)
    assert first == second
    assert [second[step - 1] for step in (5, 7, 8, 9)] == [0, 0, 0, 0]


def test_a_world_of_one_without_compression_is_adam_with_a_frozen_variance() -> None:
    assert all(run_ranks(1, _frozen))


def _frozen(rank: int) -> bool:
    """The first two local steps, summed up and made again from where they began, give what plain steps give.

    After that they differ: the momentum becomes the mean of those of the steps, as in the paper.
    """
    options: dict[str, Any] = {"compressor": "none", "eps": 1e-3, "var_freeze_step": 8, "var_update_scaler": 99}
    plain, local = model_of(), model_of()
    every = make("zeroone_adam", plain, {**options, "local_step_clipper": 1})
    some = make("zeroone_adam", local, {**options, "local_step_scaler": 4})
    for step in range(8 + 4 + 2):
        for model, optimizer in ((plain, every), (local, some)):
            forward(model, optimizer, step, 0).backward()
            optimizer.step()
    pairs = zip(plain.parameters(), local.parameters(), strict=True)
    return bool(some.in_step) and all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)


@pytest.mark.parametrize("cut", [2, 7, 13])
def test_a_checkpoint_continues_bit_for_bit(cut: int) -> None:
    options = {**LOCAL, "var_freeze_step": 6, "local_step_scaler": 4}
    assert all(run_ranks(2, resume, "zeroone_adam", cut, 18, options))


@pytest.mark.parametrize("at", [0, 3, 5])
def test_a_nan_in_an_exchange_leaves_everything_as_it_was(at: int) -> None:
    options = {**LOCAL, "var_freeze_step": 4, "var_update_scaler": 2}
    results = run_ranks(2, poisoned, "zeroone_adam", at, options)
    assert all(result["parameters"] and result["kept"] and result["finite"] for result in results)
    assert results[0]["end"] == results[1]["end"]


def test_a_nan_in_a_local_step_leaves_its_rank_as_it_was() -> None:
    options = {**LOCAL, "var_freeze_step": 2, "local_step_scaler": 2}
    results = run_ranks(2, poisoned, "zeroone_adam", 6, options)
    assert [result["parameters"] and result["kept"] for result in results] == [False, True]
    assert all(result["finite"] for result in results)


def _in_step_after_nan(rank: int) -> str:
    """The exchange that a NaN spoils is made up for in the next step."""
    model = model_of()
    optimizer = make("zeroone_adam", model, {**LOCAL, "var_freeze_step": 2, "local_step_scaler": 2})
    for step in range(1, 12):
        loss = forward(model, optimizer, step, rank)
        (loss * (float("nan") if (step, rank) == (10, 1) else 1.0)).backward()
        optimizer.step()
    assert optimizer.in_step
    return parameters(model)


def test_a_spoilt_exchange_is_made_up_for() -> None:
    first, second = run_ranks(2, _in_step_after_nan)
    assert first == second


def _rate_of_zero(rank: int) -> tuple[bool, str, bool]:
    """A rate that starts at 0: nothing moves, and ranks agree when it rises."""
    model = model_of()
    optimizer = ZeroOneAdam(model.parameters(), lr=0.0, compressor="topk", ratio=0.1, min_numel=0)
    optimizer.progress["next"] = 5
    optimizer.progress["updates"] = 1
    optimizer.flats["exp_avg_sq"].data.fill_(1.0)
    before = parameters(model)
    for step in range(3):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
    still = parameters(model) == before
    optimizer.param_groups[0]["lr"] = 1e-3
    for step in range(3, 8):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
    return still, parameters(model), optimizer.in_step


def test_a_rate_of_zero_moves_nothing_and_parts_nobody() -> None:
    results = run_ranks(2, _rate_of_zero)
    assert results[0] == results[1]
    assert results[0][0]
    assert results[0][2]


def _loaded(rank: int) -> bool:
    """Parameters that are loaded after the optimizer was made are the ones that it goes on from."""
    model = nn.Linear(8, 8, bias=False)
    optimizer = ZeroOneAdam(model.parameters(), lr=1e-3, compressor="none")
    with torch.no_grad():
        model.weight.fill_(5.0)
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    return bool((model.weight - 5.0).abs().max() < 0.01)


def test_parameters_that_are_loaded_later_count() -> None:
    assert all(run_ranks(1, _loaded))


@pytest.mark.parametrize("name", ["var_freeze_step", "var_update_scaler", "local_step_scaler", "local_step_clipper"])
def test_bad_parameters_are_refused(name: str) -> None:
    text = run_ranks(1, refused, "zeroone_adam", {**LOCAL, name: 0})[0]
    assert text == f"ConfigError: ZeroOneAdam.{name} must be an integer >= 1, got 0"
