"""What every strategy promises, for every compressor that it carries: found through the registry."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch

from gradwire import registry
from gradwire.comm._agree import DIGEST
from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError
from gradwire.exchange import default_strategy
from gradwire.memory.base import default_memory
from gradwire.testing.processes import run_ranks
from tests.comm.jobs import conserved, run_all

POLICY = {"min_numel": 100}
STEPS = 6


def carried() -> list[tuple[str, str]]:
    pairs = itertools.product(registry.names("comm"), registry.names("compressors"))
    return [pair for pair in pairs if pair[1] != "none" and _carries(*pair)]


def _carries(strategy: str, compressor: str) -> bool:
    try:
        registry.build("comm", strategy).check(registry.build("compressors", compressor))
    except ConfigError:
        return False
    return True


def test_every_compressor_is_carried_by_its_default_strategy() -> None:
    for name in registry.names("compressors"):
        for world in (1, 2, 4, 5, 1000):
            compressor = registry.build("compressors", name)
            assert _carries(default_strategy(compressor, world), name)


@functools.cache
def results_of(strategy: str, world: int, steps: int, poison: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """Every compressor that a strategy carries, in one launch of the ranks."""
    names = [name for way, name in carried() if way == strategy]
    poisoned = None if poison is None else {2: (1, float(poison))}
    by_rank = run_ranks(world, run_all, names, {"strategy": strategy}, POLICY, steps, poisoned)
    return {name: [results[name] for results in by_rank] for name in names}


@pytest.mark.parametrize(("strategy", "compressor"), carried())
@pytest.mark.parametrize("world", [2, 3, 4])
def test_ranks_agree_and_nothing_is_lost(strategy: str, compressor: str, world: int) -> None:
    results = results_of(strategy, world, STEPS)[compressor]
    for result in results[1:]:
        for mine, first in zip(result["outputs"], results[0]["outputs"], strict=True):
            assert torch.equal(mine.view(torch.int32), first.view(torch.int32))
    method = registry.build("compressors", compressor)
    votes = type(method).settle is not Compressor.settle
    if default_memory(method) == "residual" and not votes:
        arrived, put = conserved(results, STEPS)
        torch.testing.assert_close(arrived, put, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("strategy", "compressor"), carried())
def test_the_byte_metric_is_what_the_collectives_were_handed(strategy: str, compressor: str) -> None:
    for result in results_of(strategy, 3, STEPS)[compressor]:
        metrics, compared = result["metrics"], STEPS * 2 * DIGEST
        assert metrics["compared_bytes"] == compared
        assert metrics["bytes_sent"] == result["sent"] - compared > 0
        assert metrics["bytes_received"] == result["received"] - compared > 0


@pytest.mark.parametrize(("strategy", "compressor"), carried())
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_value_that_is_not_finite_reaches_all_and_leaves_every_memory_alone(
    strategy: str, compressor: str, value: str
) -> None:
    for result in results_of(strategy, 3, 4, value)[compressor]:
        assert not result["outputs"][2].isfinite().all()
        assert result["metrics"]["nonfinite_steps"] == 1
        assert result["outputs"][3].isfinite().all()
        for name, before in result["residuals"][1].items():
            assert torch.equal(result["residuals"][2][name], before)
        for state in result["states"].values():
            assert all(tensor.isfinite().all() for tensor in state.values())
        for _, view in itertools.chain.from_iterable(result["owned"].values()):
            assert view.isfinite().all()
