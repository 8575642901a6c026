"""Promises of every strategy, for every compressor that it carries: found through the registry."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.engine.plan import default_strategy
from gradwire.errors import ConfigError
from gradwire.memory.base import default_memory
from gradwire.testing.processes import run_ranks
from gradwire.transport.handshake import DIGEST
from tests.once import once
from tests.strategies.jobs import conserved, run_all

POLICY = {"min_numel": 100}
STEPS = 6
"""The steps of a method that does something else every few steps; others have three, so that a residual is sent
twice."""
POISON = {1: "nan", 2: "inf", 3: "-inf"}
"""Step -> what one element of one rank is in it."""
LAST = 4
"""The step after them."""


def carried() -> list[tuple[str, str]]:
    pairs = itertools.product(registry.names("strategies"), registry.names("compressors"))
    return [pair for pair in pairs if pair[1] != "none" and _carries(*pair)]


def _carries(strategy: str, compressor: str) -> bool:
    try:
        registry.build("strategies", strategy).check(registry.build("compressors", compressor))
    except ConfigError:
        return False
    return True


def test_every_compressor_is_carried_by_its_default_strategy() -> None:
    for name in registry.names("compressors"):
        for world in (1, 2, 4, 5, 1000):
            compressor = registry.build("compressors", name)
            assert _carries(default_strategy(compressor, world), name)


@once
def results_of(strategy: str, world: int) -> dict[str, list[dict[str, Any]]]:
    """Every compressor that a strategy carries in a world, in one launch of the ranks."""
    names = [name for size, way, name in cases() if (size, way) == (world, strategy)]
    return _ran(strategy, world, {name: steps_of(name) for name in names}, None)


@once
def poisoned(strategy: str) -> dict[str, list[dict[str, Any]]]:
    """Every compressor that a strategy carries, with three steps on end in which a rank has no finite gradient."""
    steps = {step: (step % 3, float(value)) for step, value in POISON.items()}
    return _ran(strategy, 3, {name: LAST + 1 for way, name in carried() if way == strategy}, steps)


def _ran(
    strategy: str, world: int, steps: dict[str, int], poison: dict[int, tuple[int, float]] | None
) -> dict[str, list[dict[str, Any]]]:
    by_rank = run_ranks(world, run_all, steps, {"strategy": strategy}, POLICY, poison, timeout=800.0)
    return {name: [results[name] for results in by_rank] for name in steps}


def steps_of(compressor: str) -> int:
    return STEPS if "period" in registry.build("compressors", compressor).to_config() else 3


def cases() -> list[tuple[int, str, str]]:
    """(world, strategy, compressor): each pair on three ranks, and every third in turn on two or on four too."""
    even = [((2, 4)[turn % 2], *pair) for turn, pair in enumerate(carried()[::3])]
    return [*((3, *pair) for pair in carried()), *even]


@pytest.mark.parametrize(("world", "strategy", "compressor"), cases())
def test_ranks_agree_and_nothing_is_lost(world: int, strategy: str, compressor: str) -> None:
    results = results_of(strategy, world)[compressor]
    for result in results[1:]:
        for mine, first in zip(result["outputs"], results[0]["outputs"], strict=True):
            assert torch.equal(mine.view(torch.int32), first.view(torch.int32))
    method = registry.build("compressors", compressor)
    votes = capabilities.settles(method)
    if default_memory(method) == "residual" and not votes:
        arrived, put = conserved(results, steps_of(compressor))
        torch.testing.assert_close(arrived, put, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("strategy", "compressor"), carried())
def test_the_byte_metric_is_what_the_collectives_were_handed(strategy: str, compressor: str) -> None:
    for result in results_of(strategy, 3)[compressor]:
        metrics, compared = result["metrics"], steps_of(compressor) * 2 * DIGEST
        assert metrics["compared_bytes"] == compared
        assert metrics["bytes_sent"] == result["sent"] - compared > 0
        assert metrics["bytes_received"] == result["received"] - compared > 0


@pytest.mark.parametrize(("strategy", "compressor"), carried())
def test_a_value_that_is_not_finite_reaches_all_and_leaves_every_memory_alone(strategy: str, compressor: str) -> None:
    for result in poisoned(strategy)[compressor]:
        for step, value in POISON.items():
            assert not result["outputs"][step].isfinite().all(), value
            for name, before in result["residuals"][step - 1].items():
                assert torch.equal(result["residuals"][step][name], before), value
        assert result["metrics"]["nonfinite_steps"] == len(POISON)
        assert result["outputs"][LAST].isfinite().all()
        for state in result["states"].values():
            assert all(tensor.isfinite().all() for tensor in state.values())
        for _, view in itertools.chain.from_iterable(result["owned"].values()):
            assert view.isfinite().all()
