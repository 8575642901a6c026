"""Weights that FSDP2 gathers in 8 bits because auto has decided so: on all ranks, from the same forward pass on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradwire.testing.processes import run_ranks
from tests.auto import jobs, weights_jobs
from tests.auto.weights_jobs import WEIGHTS
from tests.once import once


@once
def decided() -> list[dict[str, Any]]:
    return run_ranks(2, weights_jobs.decided)


@once
def settings() -> list[dict[str, Any]]:
    return run_ranks(4, weights_jobs.settings)


def test_on_a_slow_link_weights_are_decided_too_and_named() -> None:
    one, other = decided()
    assert one["auto"]["decisions"] == other["auto"]["decisions"]
    assert one["digest"] == other["digest"]
    assert one["auto"]["decisions"][0]["weights"] == WEIGHTS
    assert one["auto"]["weights"]["choice"] == WEIGHTS
    assert one["auto"]["weights"]["seconds"] < 0.35 * one["auto"]["weights"]["dense_seconds"]
    assert f"{WEIGHTS} for the weights" in one["words"]


def test_a_step_has_the_same_weights_in_both_passes() -> None:
    for found in decided():
        sizes = set(found["gathered"])
        assert len(sizes) == 2
        assert max(sizes) > 3 * min(sizes)
        # They change once, with the step after the decision.
        step = found["auto"]["decisions"][0]["step"]
        assert set(found["gathered"][:step]) == {max(sizes)}
        assert set(found["gathered"][step:]) == {min(sizes)}


def test_a_backward_pass_keeps_the_weights_of_its_forward_pass_whatever_is_evaluated_in_between() -> None:
    for found in run_ranks(2, weights_jobs.evaluated_in_between):
        assert not torch.equal(found["evaluated"], found["exact"])
        torch.testing.assert_close(found["evaluated"], found["exact"], rtol=0.0, atol=0.01)
        torch.testing.assert_close(found["gradient"], found["exact"].sum(0), rtol=0.0, atol=1e-6)


def test_states_with_other_decisions_on_a_rank_are_refused_on_all() -> None:
    assert all("decisions" in told for told in run_ranks(2, weights_jobs.loaded_apart))


def test_gathers_and_reductions_share_the_link_that_is_found() -> None:
    for found in decided():
        assert found["auto"]["link"]["bits_per_second"] == pytest.approx(8 * jobs.SLOW / 4, rel=0.1)


def test_on_a_fast_link_weights_stay_as_they_are() -> None:
    for found in run_ranks(2, weights_jobs.decided, jobs.FAST, 24):
        assert found["auto"]["decisions"] == []
        assert found["auto"]["weights"]["choice"] == "dense"


@pytest.mark.parametrize(
    ("options", "ratio"), [({"weights": None}, 1.0), ({"budget": "exact"}, 1.0), ({"weights": "blockwise8"}, 3.9)]
)
def test_weights_that_are_named_and_those_beyond_the_budget_are_not_decided(options: Any, ratio: float) -> None:
    for found in run_ranks(2, weights_jobs.decided, jobs.SLOW / 4, 24, options):
        assert found["auto"]["decisions"]
        assert all("weights" not in each for each in found["auto"]["decisions"])
        # What is not decided here has no row: of a method that was named it would say "dense".
        assert "weights" not in found["auto"]
        assert len(set(found["gathered"])) == 1
        plain = decided()[0]["gathered"][0]
        assert found["gathered"][0] == pytest.approx(plain / ratio, rel=0.05)
        assert found["auto"]["link"]["bits_per_second"] == pytest.approx(8 * jobs.SLOW / 4, rel=0.15)


def test_decisions_are_repeated_and_resumed_bit_for_bit() -> None:
    for found in run_ranks(2, weights_jobs.repeated):
        assert found["last"] < 30
        assert found["first"] == found["again"] == found["resumed"]
        assert len(set(found["bytes"])) == 1
        # A state from before weights were decided has none, and they are gathered as they were.
        assert found["older"] == found["plain"] > 3 * found["bytes"][0]


@pytest.mark.parametrize("setting", ["plain", "kept", "bfloat16", "checkpoint"])
def test_weights_change_in_a_running_model_with_each_setting_of_fsdp(setting: str) -> None:
    for result in settings():
        found = result[setting]
        first, second, third, last = found["sent"]
        assert first == second > third == last
        assert first == pytest.approx((1.9 if setting == "bfloat16" else 3.6) * third, rel=0.12)
        for used, exact, other in zip(found["used"], found["exact"], settings()[0][setting]["used"], strict=True):
            assert torch.equal(used, other)
            assert 0 < float((used - exact).norm() / exact.norm()) < 0.02
        # A method that is named ends what was decided.
        assert found["after"] == first


def test_between_replicas_weights_stay_as_they_are() -> None:
    for result in settings():
        found = result["replicas"]
        assert set(found["sent"]) == {0}
        for used, exact in zip(found["used"], found["exact"], strict=True):
            assert torch.equal(used, exact)
