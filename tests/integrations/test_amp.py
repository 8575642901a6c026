"""Loss scaling, 16 bits, clipping, schedules: no residual is poisoned, none is in a wrong unit."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gradwire.testing.processes import run_ranks
from tests.integrations.amp_jobs import BAD, everything

METHODS: dict[str, dict[str, Any]] = {
    "twobit": {"threshold": 1.0},
    "topk": {"ratio": 0.1},
    "powersgd": {"rank": 1},
    "dgc": {"ratio": 0.1},
    "ef21": {},
    "onebit": {"scale": "mean", "strategy": "two_phase"},
}


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    return run_ranks(2, everything, METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_an_overflow_leaves_every_residual_and_all_ranks_skip_that_step_alone(method: str, told: Any) -> None:
    """It is in the last of several buckets: what the others sent before is lost with the step, so it is put back."""
    first, second = (result["scaled"][method] for result in told)
    for result in (first, second):
        assert result["untouched"]
        assert result["skipped"] == [step == BAD for step in range(7)]
        assert result["metrics"]["nonfinite_steps"] == 1
        assert result["metrics"]["residual_norm"] < float("inf")
    assert first["digest"] == second["digest"]
    assert first["scales"] == second["scales"]
    assert first["scales"][BAD + 1] == first["scales"][BAD] / 2


def test_torchs_powersgd_is_poisoned_by_one_overflow_and_ours_is_not(told: Any) -> None:
    clean = [step != BAD for step in range(7)]
    for result in told:
        assert result["ours"] == clean
        assert result["torch"] == [step < BAD for step in range(7)]


def test_what_is_kept_follows_the_loss_scale_in_its_own_power(told: Any) -> None:
    for result in told:
        units = result["units"]
        assert units["topk", "scale"] == {"residual": [0.25]}
        assert units["dgc", "scale"] == {"residual": [0.25], "momentum": [0.25]}
        assert units["variance", "scale"] == {"residual": [0.25], "variance": [0.0625]}
        assert units["ef21", "scale"] == {"local": [0.25], "mean": [0.25]}


def test_only_residuals_of_a_rates_own_parameters_follow_it(told: Any) -> None:
    for result in told:
        for method in ("topk", "dgc", "variance"):
            assert result["units"][method, "rate"] == [pytest.approx(1.0)]
            assert result["units"][method, "others"] == [0.25]
        assert result["schedule"] == {"factors": [[], [1.0], [4.0]], "saved": 0.25}


@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float16"])
def test_autocast_and_clipping(dtype: str, told: Any) -> None:
    first, second = (result["autocast"][dtype] for result in told)
    assert first["digest"] == second["digest"]
    assert first["losses"][-1] < first["losses"][0]
    assert first["nonfinite"] == 0


def test_what_would_part_the_ranks_or_mix_units_is_refused(told: Any) -> None:
    patterns = [
        r"exchange_gradients must be called before scaler.unscale_ and scaler.step, got no call",
        r"scaler must be given, as when the state was saved at scale 65536.0, got None",
        r"scaler must be a torch.amp.GradScaler or None, got 1024.0",
        r"lr_correction must be a torch.optim.Optimizer or None, got 0.1",
    ]
    for result in told:
        assert len(result["refusals"]) == len(patterns)
        for pattern, answer in zip(patterns, result["refusals"], strict=True):
            assert re.search(pattern, answer), answer
