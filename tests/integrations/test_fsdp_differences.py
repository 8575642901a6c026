"""Differences of weights: all ranks compute with one estimate, in both passes, and it never drifts away."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.testing.processes import run_ranks
from tests.integrations.fsdp_differences_jobs import LAYOUTS, STILL, WIDE, differences, leave, take
from tests.once import once

CASES = [*LAYOUTS, "bfloat16", "exclude"]


@once
def told() -> list[dict[Any, Any]]:
    return run_ranks(4, differences)


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_compute_with_one_estimate_of_exact_weights(case: str) -> None:
    for result in told():
        found = result[case]
        assert found["masters"]
        # Without the state FSDP gathers the weights, in bfloat16 as rounded ones.
        assert found["closed"] == (case != "bfloat16")
        assert found["left"] == []
        assert all(torch.equal(*pair) for pair in zip(found["used"], told()[0][case]["used"], strict=True))
        assert all(torch.equal(*pair) for pair in zip(found["trained"], told()[0][case]["trained"], strict=True))


@pytest.mark.parametrize("case", LAYOUTS)
def test_the_first_gather_is_exact_and_what_a_difference_loses_is_in_the_next(case: str) -> None:
    for result in told():
        found = result[case]
        assert found["first"] == [0.0, 0.0, 0.0]
        # Three steps have changed the weights; from then on each gather is nearer to them by more than half.
        for earlier, later in zip(found["errors"], found["errors"][1:], strict=False):
            assert all(after < before / 2 or after < 1e-7 for before, after in zip(earlier, later, strict=True))
        assert 0 < min(found["errors"][0]) <= max(found["errors"][0]) < 0.02
        assert max(found["errors"][STILL - 1]) < 1e-5


def test_in_bfloat16_the_estimate_comes_as_near_as_bfloat16_does() -> None:
    for result in told():
        found = result["bfloat16"]
        assert found["dtype"] == torch.bfloat16
        # The estimate stays below half a step of bfloat16, 0.2 %, from weights that bfloat16 has rounded.
        assert max(found["errors"][-1]) < 0.004
        assert found["estimate_bytes"] * 2 == result["flat"]["estimate_bytes"]


def test_what_is_excluded_travels_as_it_is() -> None:
    for result in told():
        for up, down, _ in result["exclude"]["errors"][:3]:
            assert up == 0.0
            assert down > 0.0


@pytest.mark.parametrize("case", LAYOUTS)
def test_it_trains_as_with_exact_weights(case: str) -> None:
    for result in told():
        assert result[case]["loss"] == pytest.approx(result["exact", case]["loss"], rel=0.02)


def test_both_passes_compute_with_the_same_weights_and_the_second_sends_nothing() -> None:
    whole = WIDE * WIDE * 4
    for result in told():
        resharded, kept = result["passes"][True], result["passes"][False]
        assert resharded["same"] == kept["same"] == [True] * 3
        # A block of 256 has 128 bytes of codes and a scale of 4, and a message begins with its status.
        payload = WIDE * WIDE // 4 // 256 * (128 + 4)
        assert all(3 * payload <= sent <= 3 * (payload + 256) for sent in resharded["bytes"][1:])
        assert resharded["bytes"] == kept["bytes"]
        assert resharded["bytes"][0] - resharded["bytes"][1] == 3 * whole // 4
        assert resharded["dense"] == [2 * 3 * whole // 4] * 3
        assert resharded["dense"][1] / resharded["bytes"][1] > 15
        assert kept["dense"] == [3 * whole // 4] * 3
        assert resharded["estimate_bytes"] == whole


def test_a_value_that_is_not_finite_is_seen_by_all_and_leaves_the_estimate_alone() -> None:
    for result in told():
        case = result["spoiled"]
        assert case["bad"] == case["none"] == [False, True, False, False]
        assert case["errors"][1] < case["errors"][0] < 1e-3


def test_a_resumed_model_gathers_the_estimate_and_goes_on_bit_for_bit() -> None:
    for result in told():
        case = result["resumed"]
        assert case["same"]
        assert case["again"], "what was loaded is saved before the next pass, too"
        assert case["saved"] == {"layer.weight": WIDE * WIDE // 4}
        assert case["first"] - case["second"] == 3 * WIDE * WIDE


def test_on_another_number_of_ranks_it_begins_with_the_weights(tmp_path: Path) -> None:
    run_ranks(4, leave, str(tmp_path))
    for result in run_ranks(2, take, str(tmp_path), 4):
        assert min(result["late"]) > 0.0
        assert result["first"] == [0.0, 0.0, 0.0]


REFUSED = {
    "plain": "weights must be a method whose error is small and that is not random, such as .* got 'loco'",
    "random": "weights must be a method whose error is small and that is not random, .* or 'ef21:inner=loco' for "
    "differences, got 'ef21'",
    "coarse": "weights must be a method whose error is small .* got 'ef21'",
    "rounds": r"EF21\.inner must be a contraction of one round",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_carry_differences_is_refused(case: str) -> None:
    for result in told():
        assert re.search(REFUSED[case], result["refused"][case]), result["refused"][case]
