"""MicroAdam over real Gloo processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gradwire
from gradwire.optim import MicroAdam
from gradwire.testing.processes import run_ranks
from tests.optim.jobs import (
    adamw,
    dense_loss,
    digest,
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

SPARSE = {"ratio": 0.1, "min_numel": 0}


def _whole(rank: int, window: int, steps: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """All elements are sent: the parameters, and those of Adam with sums over the last gradients, in float64."""
    model = model_of()
    groups = [
        {"params": list(model[:2].parameters()), "lr": 1e-2, "betas": (0.8, 0.95), "weight_decay": 0.3},
        {"params": list(model[2:].parameters()), "eps": 1e-4},
    ]
    optimizer = MicroAdam(groups, lr=3e-3, weight_decay=0.1, window=window, ratio=1.0, min_numel=0)
    expected = [[param.detach().double() for param in group["params"]] for group in groups]
    seen: list[list[list[torch.Tensor]]] = []
    for t in range(1, steps + 1):
        forward(model, optimizer, t, rank).backward()
        grads = [[param.grad.clone() for param in group["params"]] for group in groups]
        for grad in (grad for each in grads for grad in each):
            dist.all_reduce(grad.div_(dist.get_world_size()))
        seen = [*seen, grads][-window:]
        for number, group in enumerate(optimizer.param_groups):
            for i, param in enumerate(expected[number]):
                sums = []
                for which, beta in enumerate(group["betas"]):
                    terms = [
                        beta**age * grads[number][i].double() ** (1 + which) for age, grads in enumerate(reversed(seen))
                    ]
                    sums.append((1 - beta) / (1 - beta**t) * torch.stack(terms).sum(0))
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.sub_(group["lr"] * sums[0] / (sums[1].sqrt() + group["eps"]))
        optimizer.step()
    return [param.detach() for param in model.parameters()], [param for each in expected for param in each]


@pytest.mark.parametrize("window", [1, 3, 20])
def test_every_step_is_the_papers(window: int) -> None:
    for ours, expected in run_ranks(2, _whole, window, 8):
        for own, other in zip(ours, expected, strict=True):
            torch.testing.assert_close(own.double(), other, rtol=1e-4, atol=1e-6)


def _as_adam(rank: int) -> list[list[torch.Tensor]]:
    models = [model_of(), model_of()]
    plain = torch.optim.AdamW(models[0].parameters(), lr=3e-3, weight_decay=0.1)
    ours = MicroAdam(models[1].parameters(), lr=3e-3, weight_decay=0.1, window=12, ratio=1.0)
    for step in range(12):
        for model, optimizer in zip(models, (plain, ours), strict=True):
            forward(model, optimizer, step, rank).backward()
            optimizer.step()
    return [[param.detach() for param in model.parameters()] for model in models]


def test_with_all_elements_and_a_window_as_long_as_the_run_it_is_adamw() -> None:
    for plain, ours in zip(*run_ranks(1, _as_adam)[0], strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def _by_hand(rank: int) -> list[float]:
    """Two ranks, the largest of four elements is sent, and the others wait."""
    weight = nn.Parameter(torch.zeros(4))
    exact = {"ratio": 0.25, "min_numel": 0, "residual_dtype": "float32"}
    optimizer = gradwire.MicroAdam([weight], lr=1.0, betas=(0.0, 0.0), window=2, **exact)
    for _ in range(3):
        weight.grad = torch.tensor([4.0, 3.0, 0.0, 0.0] if rank == 0 else [2.0, 1.0, 0.0, 0.0])
        optimizer.step()
    rows = [dict(zip(row.places.tolist(), row.values.tolist(), strict=True)) for row in optimizer.rows]
    return [rows[0].get(0, 0.0), rows[0].get(1, 0.0), rows[1].get(0, 0.0), rows[1].get(1, 0.0), *weight[:2].tolist()]


def test_a_window_by_hand() -> None:
    # Rank 0 sends 4, 6 (that waited from 3), 8; rank 1 sends 2, 2 (a tie goes to the lower place), 3 (1 + 1 + 1).
    # Their means are (3, 0), (1, 3), (4, 1.5); with betas of 0 a step is the sign of the last mean.
    told = [1.0, 3.0, 4.0, 1.5, -3.0, -2.0]
    assert run_ranks(2, _by_hand) == [pytest.approx(told)] * 2


def test_ranks_are_bit_identical_and_what_is_sparse_learns() -> None:
    results = run_ranks(2, train, "micro_adam", 160, SPARSE)
    dense = dense_loss(adamw, 160)
    assert results[0]["digests"] == results[1]["digests"]
    assert len(set(results[0]["digests"])) == 160
    assert results[0]["loss"] < dense + 0.5 < loss_of(model_of()) - 1.0


def _kept(rank: int, ratio: float) -> tuple[int, int]:
    model = model_of()
    optimizer = make("micro_adam", model, {**SPARSE, "ratio": ratio, "window": 4})
    for step in range(6):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
    assert isinstance(optimizer, MicroAdam)
    return len(optimizer.rows), max(row.places.numel() for row in optimizer.rows)


def test_the_window_holds_what_the_ranks_sent_and_no_more() -> None:
    for rows, longest in run_ranks(2, _kept, 0.01):
        assert rows == 4
        assert longest <= 2 * sum(-(-param.numel() // 100) for param in model_of().parameters())


@pytest.mark.parametrize("cut", [2, 7])
def test_a_checkpoint_continues_bit_for_bit(cut: int) -> None:
    assert all(run_ranks(2, resume, "micro_adam", cut, 12, {**SPARSE, "window": 4}))


def _narrow(rank: int, options: dict[str, Any]) -> tuple[set[torch.dtype], int, str]:
    model = model_of()
    optimizer = make("micro_adam", model, {**SPARSE, **options})
    for step in range(4):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
    errors = optimizer.exchange.residuals.worker["residual"].values()
    return {tensor.dtype for tensor in errors}, sum(tensor.nbytes for tensor in errors), parameters(model)


@pytest.mark.parametrize(
    ("options", "dtype", "size"),
    [
        ({}, torch.int8, lambda n: -(-n // 256) * 132),
        ({"residual_dtype": "bfloat16"}, torch.bfloat16, lambda n: 2 * n),
        ({"memory": "residual", "residual_dtype": "float32"}, torch.float32, lambda n: 4 * n),
    ],
)
def test_errors_are_kept_in_four_bits_or_as_wide_as_is_asked_for(
    options: dict[str, Any], dtype: torch.dtype, size: Callable[[int], int]
) -> None:
    results = run_ranks(2, _narrow, options)
    assert results[0] == results[1]
    assert results[0][:2] == ({dtype}, sum(size(param.numel()) for param in model_of().parameters()))


def test_a_nan_on_one_rank_leaves_everything_as_it_was() -> None:
    results = run_ranks(2, poisoned, "micro_adam", 5, {**SPARSE, "window": 3})
    assert all(result["parameters"] and result["kept"] and result["finite"] for result in results)
    assert results[0]["end"] == results[1]["end"]
    assert [result["count"] for result in results] == [1, 1]


def _unused(rank: int) -> tuple[str, bool]:
    """A parameter without a gradient is one with a gradient of 0."""
    digests = []
    for zero in (False, True):
        model = model_of()
        optimizer = make("micro_adam", model, SPARSE)
        for step in range(4):
            forward(model, optimizer, step, rank).backward()
            last = list(model.parameters())[-1]
            last.grad = torch.zeros_like(last) if zero else None
            optimizer.step()
        digests.append(parameters(model))
    return digests[0], digests[0] == digests[1]


def test_a_parameter_without_a_gradient_counts_as_one_with_zeros() -> None:
    results = run_ranks(2, _unused)
    assert results[0] == results[1]
    assert results[0][1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"window": 0}, "MicroAdam.window must be an integer >= 1, got 0"),
        ({"window": True}, "MicroAdam.window must be an integer >= 1, got True"),
        ({"betas": (1.0, 0.9)}, "MicroAdam.betas must be two numbers in [0, 1), got (1.0, 0.9)"),
        ({"eps": 0.0}, "MicroAdam.eps must be in (0, 1), got 0.0"),
        ({"ratio": 0.0}, "TopK.ratio must be in (0, 1], got 0.0"),
        ({"memory": "none"}, "memory 'none' loses for good"),
    ],
)
def test_bad_parameters_are_refused(options: dict[str, Any], text: str) -> None:
    assert text in run_ranks(1, refused, "micro_adam", {**SPARSE, **options})[0]


def _elsewhere(rank: int) -> tuple[str, str]:
    optimizer = make("micro_adam", model_of(), SPARSE)
    before = digest(optimizer.state_dict())
    try:
        optimizer.load_state_dict(make("onebit_adam", model_of(), {"freeze_step": 1}).state_dict())
    except gradwire.ConfigError as error:
        return str(error), "same" if digest(optimizer.state_dict()) == before else "changed"
    return "", ""


def test_a_checkpoint_of_something_else_is_refused() -> None:
    text, state = run_ranks(1, _elsewhere)[0]
    assert text.startswith("state_dict must be one of MicroAdam, got ")
    assert state == "same"
