"""DiLoCo over real Gloo processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gradwire.errors import ConfigError
from gradwire.optim import DiLoCo
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

FOUR_BITS = {"compressor": "qsgd", "bits": 4, "memory": "residual", "min_numel": 0, "every": 10, "momentum": 0.5}


def test_it_learns_nearly_like_its_inner_optimizer_with_a_fraction_of_the_bytes() -> None:
    results = run_ranks(2, train, "diloco", 160, FOUR_BITS)
    dense = dense_loss(adamw, 160)
    assert results[0]["digests"] == results[1]["digests"]
    assert len(set(results[0]["digests"])) == 16
    assert results[0]["loss"] < dense + 0.1 < loss_of(model_of()) - 1.0
    parameters_bytes = 4 * sum(param.numel() for param in model_of().parameters())
    assert results[0]["metrics"]["bytes_sent"] < 160 * parameters_bytes / 70


def _outer(rank: int) -> bool:
    """Without compression the outer step is that of torch, over the mean of the ways."""
    model, alone = model_of(), model_of()
    optimizer = make("diloco", model, {"compressor": "none", "every": 3})
    shadow = [param.detach().clone() for param in model.parameters()]
    outer = torch.optim.SGD(shadow, lr=0.7, momentum=0.9, nesterov=True)
    inner = torch.optim.AdamW(alone.parameters(), lr=3e-3)
    for step in range(9):
        for each, its in ((model, optimizer), (alone, inner)):
            forward(each, its, step, rank).backward()
            its.step()
        if step % 3 == 2:
            with torch.no_grad():
                for agreed, param in zip(shadow, alone.parameters(), strict=True):
                    agreed.grad = (agreed - param).div_(2)
                    torch.distributed.all_reduce(agreed.grad)
                outer.step()
                for agreed, param in zip(shadow, alone.parameters(), strict=True):
                    param.copy_(agreed)
    return parameters(alone) == parameters(model)


def test_uncompressed_it_is_the_outer_sgd_of_torch_bit_for_bit() -> None:
    assert run_ranks(2, _outer) == [True, True]


@pytest.mark.parametrize("cut", [3, 8, 20])
def test_a_checkpoint_continues_bit_for_bit(cut: int) -> None:
    options = {**FOUR_BITS, "compressor": "topk", "ratio": 0.1, "strategy": "two_phase", "every": 4}
    del options["bits"]
    assert all(run_ranks(2, resume, "diloco", cut, 24, options))


def test_a_nan_in_a_local_step_leaves_its_rank_as_it_was() -> None:
    results = run_ranks(2, poisoned, "diloco", 3, {**FOUR_BITS, "every": 8})
    assert [result["parameters"] and result["kept"] for result in results] == [False, True]
    assert results[0]["end"] == results[1]["end"]
    assert all(result["finite"] for result in results)


def _spoilt(rank: int) -> tuple[bool, str]:
    """A way that is not finite: the round is dropped, and all go on from where they last met."""
    model = model_of()
    optimizer = make("diloco", model, {**FOUR_BITS, "every": 4})
    met, held = "", ""
    for step in range(12):
        forward(model, optimizer, step, rank).backward()
        if (step, rank) == (7, 1):
            with torch.no_grad():
                next(model.parameters())[0, 0] = float("inf")
        optimizer.step()
        if step == 3:
            met, held = parameters(model), state_of(optimizer)
        if step == 7:
            dropped = parameters(model) == met and state_of(optimizer) == held
    return dropped, parameters(model)


def state_of(optimizer: Any) -> str:
    kept = optimizer.state_dict()
    residuals = [
        tensor for tensors in kept["exchange"]["ranks"].popitem()[1]["worker"].values() for tensor in tensors.values()
    ]
    velocity = list(kept["kept"]["velocity"].values())
    return str([float(tensor.double().square().sum()) for tensor in [*residuals, *velocity]])


def test_a_way_that_is_not_finite_drops_the_round() -> None:
    results = run_ranks(2, _spoilt)
    assert all(dropped for dropped, _ in results)
    assert results[0][1] == results[1][1]


def _sixteen_bits(rank: int) -> tuple[str, float]:
    """The float32 agreement moves by less than a bfloat16 step and still adds up."""
    torch.manual_seed(rank)
    model = nn.Linear(64, 64, bias=False).bfloat16()
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = DiLoCo(inner, "none", every=1, lr=0.01, momentum=0.0)
    before = model.weight.detach().float().clone()
    for _ in range(30):
        optimizer.zero_grad()
        model.weight.grad = torch.full_like(model.weight, 2.0**-6)
        optimizer.step()
    return parameters(model.float()), float((before - model.weight.detach()).mean())


def test_sixteen_bit_parameters_lose_nothing_of_small_outer_steps() -> None:
    results = run_ranks(2, _sixteen_bits)
    assert results[0][0] == results[1][0]
    assert 0.8 < results[0][1] / (30 * 0.01 * 2.0**-6) < 1.2


def _scheduled(rank: int) -> tuple[float, float]:
    model = model_of()
    optimizer = make("diloco", model, {**FOUR_BITS, "every": 2})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    forward(model, optimizer, 0, rank).backward()
    optimizer.step()
    scheduler.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]["lr"] *= 0.5
    return optimizer.inner.param_groups[0]["lr"], optimizer.lr


def test_a_scheduler_moves_the_inner_rate() -> None:
    assert run_ranks(1, _scheduled)[0] == (3e-3 / 4, 0.7)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"every": 0}, "DiLoCo.every must be an integer >= 1, got 0"),
        ({"lr": 0.0}, "DiLoCo.lr must be a finite number > 0, got 0.0"),
        ({"momentum": 1.0}, "DiLoCo.momentum must be in [0, 1), got 1.0"),
        ({"ratio": 0.1}, "'qsgd' has no parameter 'ratio'"),
        ({"fragmets": 2}, "'qsgd' has no parameter 'fragmets': did you mean 'fragments'"),
    ],
)
def test_bad_parameters_are_refused(options: dict[str, Any], text: str) -> None:
    assert text in run_ranks(1, refused, "diloco", {**FOUR_BITS, **options})[0]


def test_an_inner_optimizer_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"DiLoCo.inner must be a torch.optim.Optimizer"):
        DiLoCo(model_of().parameters())  # type: ignore[arg-type]
