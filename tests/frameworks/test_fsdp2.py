"""FSDP2 as Accelerate, Transformers' Trainer and Lightning set it up, on two real processes."""

from __future__ import annotations

import re
import statistics
from typing import Any

import pytest

from gradwire.testing.processes import run_ranks
from tests.frameworks.fsdp2_jobs import EXAMPLES, everything

WAYS = ("accelerate", "trainer", "lightning")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(2, everything, str(tmp_path_factory.mktemp("fsdp2")), timeout=800.0)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_scattered_compressed_and_each_rank_keeps_its_part(way: str, told: list[dict[str, Any]]) -> None:
    for each in told:
        metrics = each[way]["unbroken"]["metrics"]
        assert metrics["steps"] == (8 if way == "lightning" else 6)
        assert metrics["nonfinite_steps"] == 0
        assert metrics["ratio"] > 5
    assert told[0][way]["unbroken"]["digest"] != told[1][way]["unbroken"]["digest"], "the model is not sharded"


@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_is_the_unbroken_one(way: str, told: list[dict[str, Any]]) -> None:
    for each in told:
        assert max(each[way]["unbroken"]["residual"]) > 0
        for other in ("resumed", "late"):
            resumed = each[way].get(other, each[way]["resumed"])
            assert resumed["residual"] == each[way]["unbroken"]["residual"]
            assert resumed["digest"] == each[way]["unbroken"]["digest"]


@pytest.mark.parametrize("way", ["accelerate", "trainer"])
def test_each_rank_saves_its_residuals(way: str, told: list[dict[str, Any]]) -> None:
    assert all(each[way]["files"] == ["gradwire-0.pt", "gradwire-1.pt"] for each in told)


def test_a_checkpoint_without_residuals_goes_on_with_none(told: list[dict[str, Any]]) -> None:
    for each in told:
        assert each["lightning"]["without"]["digest"] != each["lightning"]["unbroken"]["digest"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_loss_is_that_without_compression_within_what_seeds_make_of_it(
    name: str, told: list[dict[str, Any]]
) -> None:
    for each in told:
        exact, compressed, ratios = zip(*each["losses"][name], strict=True)
        assert min(ratios) > 5
        assert abs(statistics.mean(compressed) - statistics.mean(exact)) < statistics.stdev(exact)


def test_a_module_that_shards_nothing_is_an_error(told: list[dict[str, Any]]) -> None:
    allowed = r"ConfigError: strategy must be one that wraps .*, or a module that configure_model has sharded, got "
    for each in told:
        assert re.search(allowed, each["refused"]["not sharded"]), each["refused"]["not sharded"]
