"""The recipe: its optimizer and its schedule."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from gradwire.errors import ConfigError
from gradwire_lab.experiments.recipe import Recipe


def test_the_learning_rate_warms_up_and_falls_twice() -> None:
    factors = [Recipe().factor(step, 220) for step in range(220)]
    assert factors[:20] == pytest.approx([(step + 1) / 20 for step in range(20)])
    assert factors[20:110] == [1.0] * 90
    assert factors[110:176] == pytest.approx([0.1] * 66)
    assert factors[176:] == pytest.approx([0.01] * 44)


def test_half_a_cosine_ends_at_its_share_of_the_peak() -> None:
    recipe = Recipe(warmup=20, cosine=0.1)
    factors = [recipe.factor(step, 121) for step in range(121)]
    assert factors[:20] == pytest.approx([(step + 1) / 20 for step in range(20)])
    assert (factors[20], factors[120]) == (pytest.approx(1.0, abs=1e-3), 0.1)
    assert (factors[45], factors[70], factors[95]) == (
        pytest.approx(0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2, abs=1e-2),
        pytest.approx(0.55, abs=1e-2),
        pytest.approx(0.1 + 0.9 * (1 - math.sqrt(0.5)) / 2, abs=1e-2),
    )
    assert factors[19:] == sorted(factors[19:], reverse=True)


def test_there_is_one_schedule() -> None:
    with pytest.raises(ConfigError, match=r"^Recipe\.cosine must be None with linear, got 0\.1$"):
        Recipe(linear=True, cosine=0.1)


def test_the_optimizer_is_nesterov_sgd() -> None:
    options = Recipe(lr=0.2).build([torch.zeros(1, requires_grad=True)]).defaults
    assert {name: options[name] for name in ("lr", "momentum", "weight_decay", "nesterov")} == {
        "lr": 0.2,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "nesterov": True,
    }


@pytest.mark.parametrize(
    ("name", "values", "allowed"),
    [
        ("batch", [0, -1, 1.5, True, "64", None], "an integer >= 1"),
        ("lr", [-0.1, math.nan, math.inf, 10**400, True, "abc", None, [0.1]], "a finite number >= 0"),
        ("momentum", [1.0, -0.1, math.nan, "0.9", None], r"a number in \[0, 1\)"),
        ("weight_decay", [-1e-4, math.inf, "0"], "a finite number >= 0"),
        ("warmup", [0, -5, 2.5, math.nan, "20", None], "an integer >= 1"),
        ("drops", [0.5, (1.5,), (-0.1,), (math.nan,), ("0.5",), "0.5", None], r"a sequence of numbers in \[0, 1\]"),
        ("fall", [-0.1, math.nan, "0.1", None], "a finite number >= 0"),
        ("linear", ["yes", None, 2], "true or false"),
        ("clip", [0, -1.0, math.nan, "1", False], "a number above 0, or None"),
        ("optimizer", ["lion", None, ("sgd",), {}], "one of sgd, adam, adamw, muon, rmsprop"),
        ("betas", [0.9, (0.9,), (0.9, 1.0), (0.9, 0.99, 0.999), ("0.9", 0.99), None], r"two numbers in \[0, 1\)"),
        ("epochs", [0, 1.0, "10", None], "an integer >= 1"),
        ("steps", [0, 1.0, "10"], "an integer >= 1, or None"),
        ("cosine", [-0.1, 1.1, math.nan, True, "0.1"], r"a number in \[0, 1\], or None"),
        ("autocast", [1, "yes", None], "true or false"),
        ("micro", [0, -4, 2.0, "4"], "an integer >= 1, or None"),
    ],
)
def test_a_value_that_cannot_be_is_named(name: str, values: list[Any], allowed: str) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=rf"^Recipe\.{name} must be {allowed}, got "):
            dataclasses.replace(Recipe(), **{name: value})


@pytest.mark.parametrize(
    "changes",
    [
        {"lr": 1e38, "weight_decay": 0, "momentum": 0},
        {"drops": (), "fall": 2.0},
        {"drops": [0, 1]},
        {"linear": True, "warmup": 10**6},
        {"clip": math.inf},
        {"optimizer": "adam", "betas": [0, 0.5]},
        {"batch": 1, "epochs": 1, "lr": 0},
        {"cosine": 0.5, "warmup": 10**6},
        {"cosine": 0, "micro": 1, "steps": 1},
    ],
)
def test_what_is_unusual_trains(changes: dict[str, Any]) -> None:
    recipe, param = dataclasses.replace(Recipe(), **changes), torch.ones(2, requires_grad=True)
    optimizer = recipe.build([param])
    param.grad = torch.ones(2)
    recipe.clip_([param])
    optimizer.step()
    factors = [recipe.factor(step, 4) for step in range(4)]
    assert all(0 <= factor < math.inf for factor in factors)
    assert param.isfinite().all()
