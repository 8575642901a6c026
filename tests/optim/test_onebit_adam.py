"""1-bit Adam over real Gloo processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gradwire.optim import OneBitAdam
from gradwire.testing.processes import run_ranks
from tests.heard import heard
from tests.optim.jobs import (
    adamw,
    batch,
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
    train_dense,
)

SPARSE = {"compressor": "topk", "ratio": 0.1, "min_numel": 0, "freeze_step": 20}


def test_the_warm_up_is_adam_bit_for_bit() -> None:
    dense = run_ranks(2, train_dense, adamw, 6)[0]
    ours = run_ranks(2, train, "onebit_adam", 6, {**SPARSE, "freeze_step": 6})
    assert ours[0]["digests"] == ours[1]["digests"] == dense["digests"]


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=3e-3, weight_decay=0.1)


def adamw_that_decays(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=3e-3, weight_decay=0.1)


@pytest.mark.parametrize("decoupled", [False, True])
def test_weight_decay_is_that_of_adam_or_adamw(decoupled: bool) -> None:
    options = {**SPARSE, "weight_decay": 0.1, "decoupled": decoupled}
    dense = run_ranks(2, train_dense, adamw_that_decays if decoupled else adam, 5)[0]
    assert run_ranks(2, train, "onebit_adam", 5, options)[0]["digests"] == dense["digests"]


def _settling(rank: int, sizes: list[float], rates: list[float]) -> tuple[list[int | None], int | None, list[str]]:
    """The step at which v is frozen, step by step, where the gradients have these root mean squares; and the log."""
    weight = nn.Parameter(torch.zeros(8, 8))
    optimizer = OneBitAdam([weight], betas=(0.9, 0.75), compressor="topk", min_numel=0)
    told = heard()
    frozen = []
    for size, rate in zip(sizes, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.full((8, 8), size)
        optimizer.step()
        frozen.append(optimizer.frozen_at)
    return frozen, optimizer.metrics()["frozen_at"], [text for text in told if "freezes" in text]


STEADY = [1e-3] * 30


@pytest.mark.parametrize(
    ("sizes", "rates", "at"),
    [
        ([1.0] * 30, STEADY, 5),  # The lag is 4 steps, and the fifth is the first that has one behind it.
        ([1.0] * 30, [1e-4 * min(t, 10) for t in range(1, 31)], 15),  # The rate rises last in step 10.
        ([1.0] * 30, [1e-3] * 3 + [2e-3] * 27, 9),
        ([1.0] * 30, [1e-3 / t for t in range(1, 31)], 5),
        # v is 0.75^(t - 3) after 3 steps of 1 before zeros, so it shrinks to 0.32 in each lag of 4: never.
        ([1.0] * 3 + [0.0] * 27, STEADY, None),
        # Ten times the gradient from step 4 on: while v rises it has not settled either, 0.958 in step 15.
        ([0.1] * 3 + [1.0] * 27, STEADY, 16),
    ],
)
def test_the_variance_is_frozen_once_its_norm_has_settled_and_the_rate_rises_no_more(
    sizes: list[float], rates: list[float], at: int | None
) -> None:
    results = run_ranks(2, _settling, sizes, rates)
    for rank, (frozen, told, lines) in enumerate(results):
        assert frozen == [at if at is not None and t >= at else None for t in range(1, 31)]
        assert told == at
        expected = f"OneBitAdam freezes its variance after {at} exact steps: the ratio of its norm and that of 4 steps"
        assert [line.startswith(expected) for line in lines] == [True] * (at is not None and rank == 0)


def test_where_it_decides_alone_it_is_the_run_with_that_many_exact_steps() -> None:
    auto = {**SPARSE, "freeze_step": "auto", "betas": (0.9, 0.95)}
    own = run_ranks(2, train, "onebit_adam", 40, auto)
    at = own[0]["metrics"]["frozen_at"]
    assert 20 < at < 40
    fixed = run_ranks(2, train, "onebit_adam", 40, {**auto, "freeze_step": at})
    assert own[0]["digests"] == own[1]["digests"] == fixed[0]["digests"]
    assert fixed[0]["metrics"]["frozen_at"] == at


@pytest.mark.parametrize("cut", [3, 15])
def test_a_checkpoint_knows_what_it_has_decided(cut: int) -> None:
    options = {**SPARSE, "freeze_step": "auto", "betas": (0.9, 0.75)}
    assert all(run_ranks(2, resume, "onebit_adam", cut, 18, options))


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("decoupled", [False, True])
def test_every_step_is_the_papers(decoupled: bool, alone: None) -> None:
    """Three exact steps and five in which v is frozen, and its correction with it; weight decay goes on in all."""
    lr, (beta1, beta2), eps, decay, freeze = 0.01, (0.9, 0.99), 1e-6, 0.3, 3
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(16, 16, generator=generator))
    expected = weight.detach().double()
    m, v = torch.zeros_like(expected), torch.zeros_like(expected)
    ours = OneBitAdam(
        [weight],
        lr,
        (beta1, beta2),
        eps,
        decay,
        freeze_step=freeze,
        decoupled=decoupled,
        compressor="none",
        min_numel=0,
    )
    for t in range(1, 9):
        weight.grad = torch.randn(16, 16, generator=generator)
        grad = weight.grad.double() + (0.0 if decoupled else decay * expected)
        ours.step()
        m = beta1 * m + (1 - beta1) * grad
        v = beta2 * v + (1 - beta2) * grad.square() if t <= freeze else v
        denominator = (v / (1 - beta2 ** min(t, freeze))).sqrt() + eps
        expected = expected * (1 - lr * decay if decoupled else 1) - lr / (1 - beta1**t) * m / denominator
        torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_compressed_momentum_learns_like_adam_and_ranks_stay_identical() -> None:
    results = run_ranks(2, train, "onebit_adam", 100, SPARSE)
    dense = dense_loss(adamw, 100)
    assert results[0]["digests"] == results[1]["digests"]
    assert len(set(results[0]["digests"])) == 100
    assert results[0]["loss"] < dense + 0.1 < loss_of(model_of()) - 1.0
    assert results[0]["metrics"]["steps"] == 100


def test_a_checkpoint_continues_bit_for_bit() -> None:
    assert all(run_ranks(2, resume, "onebit_adam", 7, 12, {**SPARSE, "freeze_step": 4}))
    assert all(run_ranks(2, resume, "onebit_adam", 3, 8, {**SPARSE, "freeze_step": 4}))


@pytest.mark.parametrize(("at", "freeze_step"), [(2, 5), (8, 5), (3, "auto")])
def test_a_nan_on_one_rank_leaves_everything_as_it_was(at: int, freeze_step: Any) -> None:
    results = run_ranks(2, poisoned, "onebit_adam", at, {**SPARSE, "freeze_step": freeze_step})
    assert all(result["parameters"] and result["kept"] and result["finite"] for result in results)
    assert results[0]["end"] == results[1]["end"]
    assert [result["count"] for result in results] == [1, 1]


def _scaled(rank: int) -> tuple[str, list[bool], list[float]]:
    """A gradient scaler; rank 1 overflows once."""
    model = model_of()
    optimizer = make("onebit_adam", model, {**SPARSE, "freeze_step": 3})
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    stood, scales = [], []
    for step in range(6):
        loss = forward(model, optimizer, step, rank)
        scaler.scale(loss * (float("inf") if (step, rank) == (4, 1) else 1.0)).backward()
        before = parameters(model)
        scaler.step(optimizer)
        scaler.update()
        stood.append(parameters(model) == before)
        scales.append(scaler.get_scale())
    return parameters(model), stood, scales


def test_a_gradient_scaler_whose_overflow_one_rank_has() -> None:
    results = run_ranks(2, _scaled)
    assert results[0][0] == results[1][0]
    assert all(result[1] == [False] * 4 + [True, False] for result in results)
    assert results[0][2][-1] == 4.0
    assert results[1][2][-1] == 2.0


def _silent(rank: int) -> tuple[float, float]:
    """Half of the inputs are zero during the warm-up, so half of the first weight has no variance."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64, bias=False)
    before = model.weight.detach().clone()
    optimizer = OneBitAdam(model.parameters(), lr=1e-2, freeze_step=3, compressor="qsgd", bits=3, memory="residual")
    for step in range(10):
        x = batch(step, rank)[0].repeat(1, 2)
        x[:, 32:] *= float(step >= 3)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    moved = (model.weight.detach() - before).abs()
    return float(moved[:, 32:].max()), float(moved.max())


def test_elements_without_a_variance_stay_where_they_are() -> None:
    silent, largest = run_ranks(2, _silent)[0]
    assert silent == 0.0
    assert 0.0 < largest < 2.0


def _groups(rank: int) -> tuple[str, bool]:
    """Groups have their own rates, and what needs no gradient has no place in the exchange."""
    model = model_of()
    model[2].requires_grad_(False)
    groups = [
        {"params": model[0].parameters(), "lr": 0.0},
        {"params": [*model[2].parameters(), *model[4].parameters()]},
    ]
    optimizer = OneBitAdam(groups, lr=1e-2, weight_decay=0.1, freeze_step=2, compressor="qsgd", min_numel=0)
    before = [param.detach().clone() for param in model.parameters()]
    for step in range(4):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
    still = [torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    return parameters(model), still == [True] * 4 + [False] * 2


def test_groups_and_frozen_parameters() -> None:
    results = run_ranks(2, _groups)
    assert results[0][0] == results[1][0]
    assert all(result[1] for result in results)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"freeze_step": 0}, "OneBitAdam.freeze_step must be an integer >= 1 or 'auto', got 0"),
        ({"freeze_step": "soon"}, "OneBitAdam.freeze_step must be an integer >= 1 or 'auto', got 'soon'"),
        ({"betas": (0.9, 1.0)}, "OneBitAdam.betas must be two numbers in [0, 1), got (0.9, 1.0)"),
        ({"eps": 0.0}, "OneBitAdam.eps must be in (0, 1), got 0.0"),
        ({"weight_decay": -1.0}, "OneBitAdam.weight_decay must be a finite number >= 0, got -1.0"),
        ({"start_after": 5}, "start_after must be left out, because freeze_step says how many steps are dense, got 5"),
        ({"compressor": "powersgd", "ratio": None}, "'powersgd' has no parameter 'ratio'"),
        ({"exclude": ["head.*"]}, "pattern 'head.*' matches no parameter"),
    ],
)
def test_bad_parameters_are_refused(options: dict[str, Any], text: str) -> None:
    assert text in run_ranks(1, refused, "onebit_adam", {**SPARSE, **options})[0]


def _sixteen_bits(rank: int) -> str:
    try:
        OneBitAdam(nn.Linear(4, 4).bfloat16().parameters(), freeze_step=1, compressor="qsgd")
    except Exception as error:
        return str(error)
    return ""


def test_sixteen_bit_parameters_are_refused() -> None:
    assert run_ranks(1, _sixteen_bits) == ["dtype of 0.0 must be float32, got torch.bfloat16"]


def _differently(rank: int) -> str:
    return refused(rank, "onebit_adam", {**SPARSE, "freeze_step": 5 + rank})


def test_ranks_that_were_told_differently_all_raise() -> None:
    text = "GroupError: ranks were configured differently: freeze_step is 5 on rank 0; 6 on rank 1"
    assert run_ranks(2, _differently) == [text] * 2


def _world(rank: int) -> str:
    optimizer = make("onebit_adam", model_of(), SPARSE)
    state = optimizer.state_dict()
    state["exchange"]["world"] = 8
    state["exchange"]["ranks"]["0"] = {"worker": {"residual": {"0.0": torch.zeros(3)}}, "tensors": 1}
    answers = []
    fixed = make("onebit_adam", model_of(), {**SPARSE, "freeze_step": 3})
    window = make("micro_adam", model_of(), {}).state_dict()
    adamw = torch.optim.AdamW(model_of().parameters()).state_dict()
    for target, wrong in ((optimizer, state), (optimizer, adamw), (fixed, window)):
        try:
            target.load_state_dict(wrong)
        except Exception as error:
            answers.append(str(error))
    return "\n".join(answers)


def test_a_checkpoint_of_something_else_is_refused() -> None:
    world, *others = run_ranks(1, _world)[0].splitlines()
    assert world.startswith("world of the state must be 1, as the group's, got 8; on_resize='reshard' keeps")
    assert len(others) == 2
    assert all(other.startswith("state_dict must be one of OneBitAdam, got") for other in others)
