"""The lines of ``print(state)``, and the figures of the last steps beside those since the start."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

import gradwire
from gradwire.frontends.optimizer import compress_optimizer
from gradwire.metrics import WINDOW
from gradwire.testing.processes import run_ranks
from tests.auto import jobs
from tests.integrations.jobs import batch, model_of
from tests.once import once


def one(compressor: Any, steps: int, rank: int, **options: Any) -> Any:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = compress_optimizer(optimizer, model, compressor, min_numel=128, **options)
    for step in range(steps):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return state


def local(rank: int) -> Any:
    model = model_of()
    inner = torch.optim.AdamW(model.named_parameters(), lr=1e-3)
    optimizer = gradwire.CompressedStep(inner, bits=0.125, every=5)
    for step in range(12):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return optimizer


def shown(rank: int) -> dict[str, Any]:
    late = one("qsgd", 3 * WINDOW + 2, rank, start_after=WINDOW + 8)
    steady = one("qsgd", 4, rank)
    steps = local(rank)
    training = jobs.Training(rank)
    first = str(training.state)
    training.settle(jobs.SLOW, least=20)
    return {
        "late": late.metrics(),
        "steady": steady.metrics(),
        "kept": str(one("topk", 4, rank, ratio=0.05)),
        "none": str(one("none", 0, rank)),
        "steps": (str(steps), steps.metrics()),
        "first": first,
        "auto": str(training.state),
        "metrics": training.state.metrics(),
        "decisions": training.state.decisions(),
    }


@once
def told() -> list[dict[str, Any]]:
    return run_ranks(2, shown)


def test_the_ratio_is_that_of_the_last_steps() -> None:
    for found in told():
        late, steady = found["late"], found["steady"]
        assert late["ratio"] == steady["ratio"] == steady["total_ratio"] > 5
        assert 1 < late["total_ratio"] < 0.7 * late["ratio"]


def test_metrics_are_flat_and_name_no_parameter() -> None:
    for found in told():
        assert all(isinstance(value, int | float | str) for value in found["metrics"].values())
        assert found["metrics"]["auto_phase"] == "holding"
        assert found["metrics"]["link_bits_per_second"] > 0
        assert found["metrics"]["step_seconds"] > found["metrics"]["exposed_seconds"] > 0
        (decision,) = found["decisions"]["decisions"]
        assert decision["choices"][0]["params"]


def test_a_state_is_printed_in_ten_lines_at_most() -> None:
    for found in told():
        kept = found["kept"].splitlines()
        sent = r"  bytes     [\d.]+ kB a step now, [\d.]+ times fewer than uncompressed; .* in all, .*"
        assert kept[0] == "gradwire OptimizerState: 2 ranks, step 4"
        assert kept[1].startswith("  method    TopK(")
        assert re.fullmatch(sent, kept[2])
        assert re.fullmatch(r"  residual  values of norm [\d.e+-]+ wait on this rank to be sent later", kept[4])
        assert found["none"].splitlines()[0] == "gradwire OptimizerState: 2 ranks, step 0"
        auto = found["auto"].splitlines()
        assert len(auto) <= 10
        names = [line.split()[0] for line in auto[1:]]
        assert names[:4] == ["method", "chosen", "step", "link"]
        assert re.search(r"s now, [\d.]+ m?s uncompressed; .* of it wait for the exchange", found["auto"])
        assert re.search(r"method    auto, budget 'safe': it watches uncompressed steps, 0 of 4", found["first"])


def test_an_optimizer_of_local_steps_counts_these() -> None:
    for found in told():
        text, figures = found["steps"]
        assert (figures["steps"], figures["rounds"]) == (12, 2)
        assert text.splitlines()[0] == "gradwire CompressedStep: 2 ranks, step 12"
        assert re.search(r"bytes     [\d.]+ (kB|bytes) a round now", text)
