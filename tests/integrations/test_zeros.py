"""Embeddings whose rows are rarely used: one warning where zeros become noise, and one where steps are averaged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.testing.processes import run_ranks
from tests.heard import heard

QSGD = {"*words.weight": gradwire.compressor("qsgd:bits=4")}


class Words(nn.Module):
    """A table of which each batch uses a few rows, and a layer."""

    def __init__(self, empty: bool = False) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(256, 32), nn.Linear(32, 32)
        if empty:
            nn.init.zeros_(self.head.weight)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(rows))


def train(model: Any, optimizer: Any, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(torch.arange(8) + step).square().sum().backward()
        optimizer.step()


def said_of(said: list[str], docs: str) -> list[str]:
    return [text for text in said if f"(docs/{docs}.md)" in text and "zeros" in text]


def gradients(rank: int, way: str, optimizer: str, empty: bool, method: str, options: dict[str, Any]) -> list[str]:
    """The warnings about zeros of three steps."""
    torch.manual_seed(0)
    model: Any = Words(empty)
    made = {"AdamW": torch.optim.AdamW, "SGD": torch.optim.SGD}[optimizer](model.parameters(), lr=1e-2)
    said = heard()
    if way == "ddp":
        model = DistributedDataParallel(model)
        state = gradwire.compress_ddp(model, method, min_numel=64, **options)
    elif way == "told":
        model = DistributedDataParallel(model)
        state = gradwire.compress_ddp(model, method, optimizer=made, min_numel=64, **options)
    else:
        state = gradwire.compress_optimizer(made, model, method, min_numel=64, **options)
    train(model, made, range(8 * rank, 8 * rank + 3))
    state.close()
    return said_of(said, "choosing")


@pytest.mark.parametrize("way", ["ddp", "told", "optimizer"])
def test_who_makes_noise_of_zeros_under_adam_is_told_once_by_rank_0(way: str) -> None:
    (line,), others = run_ranks(2, gradients, way, "AdamW", False, "eden", {})
    assert others == []
    assert line.startswith("'eden' makes noise of zeros, and AdamW divides")
    assert "97 % of the gradient of 'words.weight' were zeros" in line
    assert "overrides={'words.weight': 'qsgd:bits=4'}" in line


@pytest.mark.parametrize(
    ("optimizer", "empty", "method", "options"),
    [
        ("AdamW", False, "eden", {"overrides": QSGD}),
        ("AdamW", False, "eden", {"exclude": ["words.*"]}),
        ("AdamW", False, "eden", {"memory": "preconditioned"}),
        ("AdamW", False, "eden", {"bits": 4}),
        ("AdamW", False, "qsgd", {"bits": 2}),
        ("AdamW", True, "eden", {}),
        ("AdamW", False, "eden", {"force": True}),
        ("SGD", False, "eden", {}),
    ],
)
def test_nobody_else_is(optimizer: str, empty: bool, method: str, options: dict[str, Any]) -> None:
    """Behind a layer that begins with zeros the whole gradient is zero at first, which tells nothing."""
    assert run_ranks(2, gradients, "ddp", optimizer, empty, method, options) == [[], []]


def skipped(rank: int) -> list[str]:
    """An optimizer that is known from the start, whose first step is left out, as a loss scaler does."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Words())
    made = torch.optim.AdamW(model.parameters(), lr=1e-2)
    said = heard()
    state = gradwire.compress_ddp(model, "eden", optimizer=made, min_numel=64)
    model(torch.arange(8)).square().sum().backward()
    train(model, made, range(2))
    state.close()
    return said_of(said, "choosing")


def test_a_first_step_that_is_left_out_hides_nothing() -> None:
    (_,), others = run_ranks(2, skipped)
    assert others == []


def named_later(rank: int) -> list[list[str]]:
    """First a method that sends zeros as zeros; then one that does not, and again."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Words())
    made = torch.optim.AdamW(model.parameters(), lr=1e-2)
    said, told = heard(), []
    state = gradwire.compress_ddp(model, "qsgd", bits=4, min_numel=64)
    for bits in (None, 1, 2):
        if bits is not None:
            state.change("eden", bits=bits)
        train(model, made, range(2))
        told.append(said_of(said, "choosing"))
    state.close()
    return told


def test_a_method_that_is_changed_to_is_looked_at_too() -> None:
    (before, after, later), others = run_ranks(2, named_later)
    assert (len(before), len(after), len(later)) == (0, 1, 1)
    assert others == [[], [], []]


def steps(rank: int, optimizer: str, options: dict[str, Any]) -> list[str]:
    torch.manual_seed(0)
    model = Words()
    inner = {"AdamW": torch.optim.AdamW, "SGD": torch.optim.SGD}[optimizer](model.named_parameters(), lr=1e-2)
    said = heard()
    made = gradwire.CompressedStep(inner, min_numel=64, **options)
    train(model, made, range(8 * rank, 8 * rank + 4))
    made.synchronize()
    return said_of(said, "transformer")


@pytest.mark.parametrize("options", [{}, {"every": 2}, {"late": True}, {"compressor": "none"}])
def test_averaged_steps_of_such_a_table_are_told_of(options: dict[str, Any]) -> None:
    (line,), others = run_ranks(2, steps, "AdamW", options)
    assert others == []
    assert "% of the step of 'words.weight' were zeros" in line
    assert "the steps of their AdamW are averaged" in line
    assert "gradwire.compress_ddp" in line


def test_steps_that_nothing_divides_are_not() -> None:
    assert run_ranks(2, steps, "SGD", {}) == [[], []]
