"""The learning rate of compressed steps follows the noise of a rank's own gradients, over real Gloo processes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import gradwire
from gradwire.errors import ConfigError, GroupError
from gradwire.optim import CompressedStep
from gradwire.optim._local_noise import EVERY, FIRST, MOST, LocalNoise
from gradwire.testing.processes import run_ranks
from tests.optim.jobs import forward, model_of, parameters, resume

LR, DECAY = 0.01, 0.5


def _step_with(optimizer: CompressedStep, param: Tensor, grad: Tensor) -> None:
    param.grad = grad.clone()
    optimizer.step()


def _by_hand(rank: int, weight_decay: float) -> tuple[list[float], list[float], list[float]]:
    """Gradients that never change: Adam's step is the learning rate towards each of their signs."""
    param = nn.Parameter(torch.ones(4))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR, weight_decay=weight_decay, eps=1e-12), "none")
    grad = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, -1.0, -1.0]][rank])
    factors = []
    for _ in range(3):
        _step_with(optimizer, param, grad)
        factors.append(optimizer.metrics()["rate_factor"])
    return param.tolist(), factors, [group["lr"] for group in optimizer.param_groups]


@pytest.mark.parametrize("weight_decay", [0.0, DECAY])
def test_half_of_the_square_in_common_makes_local_steps_longer_by_its_root_and_not_the_decay(
    weight_decay: float,
) -> None:
    (values, factors, rates), other = run_ranks(2, _by_hand, weight_decay)
    assert (values, factors, rates) == other
    assert factors == pytest.approx([math.sqrt(2)] * 3)
    assert rates == [LR]  # What a scheduler sees.
    expected = [1.0, 1.0]
    for factor in (1.0, math.sqrt(2), math.sqrt(2)):
        shrunk = [value * (1 - LR * weight_decay) for value in expected]
        expected = [shrunk[0] - LR * factor, shrunk[1]]
    assert values == pytest.approx([expected[0]] * 2 + [expected[1]] * 2, abs=1e-6)


def _share(rank: int, level: float, options: dict[str, Any]) -> tuple[float, float]:
    """The factor after one round, and the one that the exact ways have."""
    param = nn.Parameter(torch.zeros(1 << 16))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR, eps=1e-12), min_numel=0, **options)
    shared = torch.randn(len(param), generator=torch.Generator().manual_seed(9)).abs()
    own = torch.randn(len(param), generator=torch.Generator().manual_seed(rank))
    _step_with(optimizer, param, torch.where(own.abs() < level, shared, own))
    way = LR * torch.where(own.abs() < level, shared, own).sign()
    ways = [torch.empty_like(way) for _ in range(dist.get_world_size())]
    dist.all_gather(ways, way)
    whole, common = (
        way.square().sum() for way in (torch.stack(ways) / math.sqrt(len(ways)), torch.stack(ways).mean(0))
    )
    return optimizer.metrics()["rate_factor"], float((whole / common).sqrt())


@pytest.mark.parametrize("level", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("options", [{"compressor": "none"}, {}, {"bits": 0.125}, {"compressor": "qsgd", "bits": 2}])
def test_the_noise_of_a_code_does_not_count(options: dict[str, Any], level: float) -> None:
    found = run_ranks(3, _share, level, options)
    assert len({factor for factor, _ in found}) == 1  # The same bits on all ranks.
    factor, exact = found[0]
    assert factor == pytest.approx(exact, rel=1e-5 if options.get("compressor") == "none" else 0.02)
    assert 1 <= factor <= math.sqrt(3) + 1e-6


STEPS = 200


def _noisy(rank: int, options: dict[str, Any]) -> float:
    """Return how far parameters go along gradients that are mostly noise, with an AdamW on each rank or one for all."""
    param = nn.Parameter(torch.zeros(4096))
    inner = torch.optim.AdamW([param], lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
    optimizer = inner if options.get("dense") else CompressedStep(inner, min_numel=0, **options)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        grad = 0.2 + torch.randn(len(param), generator=generator)
        if optimizer is inner:
            dist.all_reduce(grad)
            grad /= dist.get_world_size()
        param.grad = grad
        optimizer.step()
    return float(-param.detach().mean())


def test_steps_on_noise_get_nearer_to_those_of_one_optimizer_on_the_mean_gradient() -> None:
    dense = run_ranks(4, _noisy, {"dense": True})[0]
    for options in ({"compressor": "none"}, {"bits": 0.5}, {"bits": 0.5, "every": 5}):
        corrected, plain = (
            run_ranks(4, _noisy, {**options, "variance_correction": given})[0] for given in (None, False)
        )
        assert plain < 0.6 * dense
        assert 1.2 * plain < corrected < 1.05 * dense


def _measured_rounds(rank: int) -> list[int]:
    param = nn.Parameter(torch.zeros(64))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR), "none")
    assert isinstance(optimizer._noise, LocalNoise)
    seen, measure = [], optimizer._noise.measure

    def recorded(ways: Any) -> None:
        seen.append(optimizer.round)
        measure(ways)

    optimizer._noise.measure = recorded  # type: ignore[method-assign]
    sent = []
    for _ in range(FIRST + 2 * EVERY):
        _step_with(optimizer, param, torch.ones(64))
        sent.append(optimizer.metrics()["bytes_sent"])
    differences = torch.tensor(sent).diff().tolist()
    assert max(differences) == min(differences) + 8  # On two ranks an average of two floats sends 8 bytes.
    return seen


def test_it_is_measured_in_the_first_rounds_and_at_intervals() -> None:
    assert run_ranks(2, _measured_rounds)[0] == [*range(1, FIRST + 1), FIRST + EVERY, FIRST + 2 * EVERY]


def _most(rank: int) -> float:
    param = nn.Parameter(torch.zeros(1024))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR), "none")
    noise = LocalNoise(optimizer.exchange, "AdamW")
    noise.load_state_dict({"share": 1e-6})
    return noise.factor


def test_it_has_a_largest_value() -> None:
    assert run_ranks(1, _most) == [MOST]


def _spoilt(rank: int) -> tuple[float, float, bool]:
    param = nn.Parameter(torch.ones(4))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR), "none")
    sign = torch.tensor([[1.0, 1.0], [1.0, -1.0]][rank]).repeat(2)
    _step_with(optimizer, param, sign)
    before = optimizer.metrics()["rate_factor"]
    with torch.no_grad():
        param[0] = math.nan if rank == 1 else param[0]
    _step_with(optimizer, param, sign)
    return before, optimizer.metrics()["rate_factor"], optimizer.metrics()["nonfinite_steps"] > 0


def test_a_round_that_is_not_finite_says_nothing() -> None:
    assert run_ranks(2, _spoilt) == [(pytest.approx(math.sqrt(2)), pytest.approx(math.sqrt(2)), True)] * 2


@pytest.mark.parametrize("every", [1, 3])
def test_a_checkpoint_continues_bit_for_bit(every: int) -> None:
    # It is saved after a round that is not measured, so that what is loaded is used.
    steps = (FIRST + 1) * every
    options = {"bits": 0.5, "min_numel": 0, "every": every}
    assert all(run_ranks(2, resume, "compressed_step", steps, steps + 6 * every, options))


def _off(rank: int) -> list[bool]:
    adamw, sgd = torch.optim.AdamW, torch.optim.SGD
    found = []
    for cls, options in (
        (adamw, {}),
        (torch.optim.Adam, {"every": 4}),
        (adamw, {"compressor": "bf16"}),
        (adamw, {"variance_correction": False}),
        (adamw, {"compressor": "topk"}),
        (adamw, {"compressor": "signsgd"}),
        (adamw, {"overrides": {"0.weight": "topk"}}),
        (adamw, {"keep": True}),
        (adamw, {"late": True}),
        (adamw, {"compressor": "auto"}),
        (sgd, {}),
    ):
        optimizer = CompressedStep(cls(model_of().named_parameters(), lr=0.1), **options)  # type: ignore[arg-type]
        found.append("rate_factor" in optimizer.metrics())
    return found


def test_it_corrects_by_itself_only_where_noise_makes_steps_shorter() -> None:
    assert run_ranks(1, _off)[0] == [True] * 3 + [False] * 8


def _refused(rank: int) -> list[str]:
    told = []
    meeting = gradwire.Meeting(dist.HashStore(), "0")
    adamw = torch.optim.AdamW
    for cls, options in (
        (adamw, {"variance_correction": 1}),
        (adamw, {"keep": True}),
        (adamw, {"late": True}),
        (adamw, {"compressor": "auto"}),
        (adamw, {"meeting": meeting}),
        (torch.optim.SGD, {}),
        (adamw, {"compressor": "topk"}),
    ):
        model = model_of()
        try:
            CompressedStep(cls(model.parameters(), lr=0.1), **{"variance_correction": True, **options})  # type: ignore[arg-type]
            told.append("")
        except ConfigError as error:
            told.append(str(error).removeprefix("CompressedStep.variance_correction must be "))
        CompressedStep(adamw(model.parameters()))  # Nothing of the one that was refused owns the parameters.
    return told


def test_bad_parameters_are_refused() -> None:
    assert run_ranks(1, _refused)[0] == [
        "True, False or None, got 1",
        "False or None with keep, got True",
        "False or None with late, got True",
        "False or None with 'auto', got True",
        "False or None with a meeting, got True",
        "False or None with an optimizer that does not divide by a mean of squares, as Adam does, got True with SGD",
        "False or None with a method that is wrong on average or keeps back what it does not send, got True with "
        "'topk'",
    ]


def _apart(rank: int) -> str:
    try:
        CompressedStep(torch.optim.AdamW(model_of().parameters()), variance_correction=rank == 0)
    except (ConfigError, GroupError) as error:
        return str(error)
    return ""


def test_ranks_that_would_step_differently_hear_of_it() -> None:
    for text in run_ranks(2, _apart):
        assert "variance_correction" in text


class Foreign(torch.optim.AdamW):
    """Stands for an optimizer of another package."""


Foreign.__module__ = "another.package"


def _trained(rank: int, kind: str) -> str:
    model = model_of()
    inner: dict[str, Any] = {
        "fused": lambda: torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True),
        "tensor": lambda: torch.optim.AdamW(model.parameters(), lr=torch.tensor(3e-3)),
        "half": lambda: torch.optim.AdamW(model.to(torch.bfloat16).parameters(), lr=3e-3),
        "foreign": lambda: Foreign(model.parameters(), lr=3e-3),
    }
    optimizer = CompressedStep(inner[kind](), min_numel=0, bits=0.5, every=2, variance_correction=True)
    for step in range(6):
        if kind == "half":
            optimizer.zero_grad()
            model(torch.randn(4, 32, dtype=torch.bfloat16)).float().square().mean().backward()
        else:
            forward(model, optimizer, step, rank).backward()
        optimizer.step()
    assert optimizer.metrics()["rate_factor"] > 1
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(3e-3)
    return parameters(model.float())


@pytest.mark.parametrize("kind", ["fused", "tensor", "half", "foreign"])
def test_rates_of_every_kind_are_multiplied(kind: str) -> None:
    one, other = run_ranks(2, _trained, kind)
    assert one == other
