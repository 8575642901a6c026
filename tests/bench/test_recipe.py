"""The recipe: its optimizer and its schedule."""

from __future__ import annotations

import pytest
import torch

from gradwire.bench.recipe import Recipe


def test_the_learning_rate_warms_up_and_falls_twice() -> None:
    factors = [Recipe().factor(step, 220) for step in range(220)]
    assert factors[:20] == pytest.approx([(step + 1) / 20 for step in range(20)])
    assert factors[20:110] == [1.0] * 90
    assert factors[110:176] == pytest.approx([0.1] * 66)
    assert factors[176:] == pytest.approx([0.01] * 44)


def test_the_optimizer_is_nesterov_sgd() -> None:
    options = Recipe(lr=0.2).build([torch.zeros(1, requires_grad=True)]).defaults
    assert {name: options[name] for name in ("lr", "momentum", "weight_decay", "nesterov")} == {
        "lr": 0.2, "momentum": 0.9, "weight_decay": 1e-4, "nesterov": True,
    }  # fmt: skip
