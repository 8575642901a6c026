"""The sum of outputs and residuals is that of the gradients: every memory, by every strategy, on two to five ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.compressors.casts.fp8 import FP8
from gradwire.compressors.levels.natural import Natural
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.contrib.compressors.sparse.oktopk import OkTopk
from gradwire.engine.exchange import Exchange
from gradwire.errors import ConfigError
from gradwire.memory.base import Memory
from gradwire.memory.ef21 import EF21Memory
from gradwire.memory.residual import Residual
from gradwire.testing.processes import run_ranks
from tests.once import once
from tests.strategies.balance_jobs import (
    GRADIENTS,
    MEMORIES,
    STEPS,
    STRATEGIES,
    WAYS,
    approach,
    carried,
    constant,
    few,
    run_each,
    run_lossless,
    together,
    works,
)
from tests.strategies.methods import Tracks

BALANCED = [name for name, each in MEMORIES.items() if each.balanced]
NEAR = {"rtol": 0, "atol": 2e-4}


WORLDS = (2, 3, 4, 5)


def dealt(world: int) -> list[tuple[str, str, str]]:
    """The memories, ways and gradients of a world: each pair of a memory and a way is in one, in turn with gradients
    that stay and that change; each memory and each way is in all worlds, and has both kinds of gradients."""
    pairs = [(m, w) for m, w in product(range(len(BALANCED)), range(len(WAYS)))]
    ways = list(WAYS)
    return [
        (BALANCED[m], ways[w], ("constant", "fresh")[(m + w // 2) % 2])
        for m, w in pairs
        if works(BALANCED[m], ways[w]) and WORLDS[(m + w) % len(WORLDS)] == world
    ]


@once
def told(world: int) -> list[dict[tuple[str, str, str], dict[str, list[Any]]]]:
    return run_ranks(world, run_each, dealt(world), timeout=800.0)


@pytest.mark.parametrize(
    ("world", "memory", "way", "gradients"), [(world, *case) for world in WORLDS for case in dealt(world)]
)
def test_what_went_in_is_what_came_out_and_what_is_kept(world: int, memory: str, way: str, gradients: str) -> None:
    results = [rank[memory, way, gradients] for rank in told(world)]
    for step in range(STEPS):
        before, after = (together([result[when][step] for result in results]) for when in ("before", "after"))
        out = results[0]["outputs"][step]
        assert all(torch.equal(result["outputs"][step], out) for result in results)
        if isinstance(MEMORIES[memory], EF21Memory):
            torch.testing.assert_close(after.mean["mean"], out.double(), **NEAR)
            # A method of several rounds gives all workers one result, which is the estimate of each.
            if way != "allreduce-rounds":
                torch.testing.assert_close(out + after.shards, after.mean["local"], **NEAR)
        else:
            grad = torch.stack([GRADIENTS[gradients](step, rank) for rank in range(world)]).double().mean(0)
            there = out + after.mean["residual"] + after.shards
            torch.testing.assert_close(there, carried(MEMORIES[memory], before, grad), **NEAR)


@pytest.mark.parametrize("world", [2, 5])
def test_a_memory_that_lets_go_of_what_is_not_sent_loses_nothing_by_a_code_that_sends_all(world: int) -> None:
    for rank in run_ranks(world, run_lossless):
        for (memory, _), outputs in rank.items():
            u = torch.zeros_like(outputs[0])
            for step, out in enumerate(outputs):
                mean = torch.stack([few(step, other) for other in range(world)]).mean(0)
                u = mean if memory == "none" else 0.9 * u + 0.1 * mean
                torch.testing.assert_close(out, u, rtol=0, atol=1e-5)
    assert len(rank) == 2 * len(STRATEGIES)


@dataclass(frozen=True)
class Case:
    """The output of a method for a constant gradient.

    Args:
        error: relative, that the last step's output may have, or the mean of all of them.
        world: number of ranks.
    """

    memory: Memory | str
    methods: list[Any]
    steps: int
    error: float
    of_all_steps: bool = False
    world: int = 3


CASES = {
    "ef21 by default on five ranks": Case(
        "ef21", [(each, None) for each in (QSGD(), Natural(), FP8())], 15, 1e-5, world=5
    ),
    "ef21 by two_phase": Case("ef21", [(TopK(ratio=0.2), "two_phase")], 15, 1e-5, world=5),
    "ef21 by oktopk": Case("ef21", [(OkTopk(ratio=0.1), "oktopk")], 65, 1e-5),
    "an explicit residual": Case("residual", [(each, None) for each in (QSGD(), Natural(), FP8())], 40, 0.01, True),
    "16 bits by oktopk": Case(Residual(dtype="bfloat16"), [(OkTopk(ratio=0.2), "oktopk")], 60, 0.1, True),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_gradient_that_stays_is_approached(case: Case) -> None:
    results: list[list[list[Tensor]]] = run_ranks(case.world, approach, case.methods, case.memory, case.steps)
    mean = torch.stack([constant(0, rank) for rank in range(case.world)]).mean(0)
    for method, outputs in zip(case.methods, results[0], strict=True):
        found = outputs[case.of_all_steps]
        assert float((found - mean).norm() / mean.norm()) < case.error, method


def test_a_memory_that_cannot_take_back_what_was_sent_in_vain_is_refused() -> None:
    text = "strategy 'oktopk' gives entries back that were sent in vain, but memory 'tracks' has no method 'returned'"
    with pytest.raises(ConfigError, match=re.escape(text)):
        Exchange(OkTopk(), memory=Tracks(), strategy="oktopk")
    Exchange(OkTopk(), memory=Tracks(), strategy="allgather")
