"""PyTorch Lightning itself, on two real processes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from gradwire.testing.processes import run_ranks
from tests.frameworks.lightning_jobs import STEPS, WAYS, everything


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(2, everything, str(tmp_path_factory.mktemp("lightning")), timeout=800.0)


def test_gradients_travel_compressed_and_ranks_stay_equal(told: list[dict[str, Any]]) -> None:
    metrics = [each["unbroken"]["metrics"] for each in told]
    assert [(each["steps"], each["nonfinite_steps"]) for each in metrics] == [(STEPS, 0)] * 2
    assert all(each["ratio"] > 5 for each in metrics)
    assert told[0]["unbroken"]["digest"] == told[1]["unbroken"]["digest"]


def test_a_checkpoint_holds_the_residuals_of_all_ranks_and_a_resumed_run_is_the_unbroken_one(
    told: list[dict[str, Any]],
) -> None:
    kept = told[0]["kept"]
    assert sorted(kept["ranks"]) == ["0", "1"]
    one, other = (kept["ranks"][rank]["worker"]["residual"] for rank in "01")
    assert any(not torch.equal(one[name], other[name]) for name in one)
    for each in told:
        assert each["resumed"]["digest"] == each["unbroken"]["digest"]
        assert each["resumed"]["residual"] == each["unbroken"]["residual"]
        assert each["without"]["digest"] != each["unbroken"]["digest"], "residuals do not matter here: a weak test"


def test_a_second_fit_goes_on_with_the_residuals_of_the_first(told: list[dict[str, Any]]) -> None:
    for each in told:
        assert each["in two fits"]["second fit"] == each["unbroken"]["digest"]


def test_a_copy_of_a_callback_begins_anew(told: list[dict[str, Any]]) -> None:
    for each in told:
        assert each["copied"] == {"digests": [each["unbroken"]["digest"]] * 2, "steps": [STEPS, STEPS]}


@pytest.mark.parametrize("way", WAYS)
def test_it_trains_and_resumes_as_lightning_can_train(way: str, told: list[dict[str, Any]]) -> None:
    ways = [each["ways"][way] for each in told]
    assert ways[0]["unbroken"]["digest"] == ways[1]["unbroken"]["digest"]
    for each in ways:
        assert each["unbroken"]["metrics"]["steps"] == STEPS
        assert each["unbroken"]["metrics"]["nonfinite_steps"] == (1 if way == "scaled" else 0)
        assert each["resumed"]["digest"] == each["unbroken"]["digest"]
        assert each["resumed"]["residual"] == each["unbroken"]["residual"]


def test_a_fit_after_one_that_broke_off_goes_on_with_its_residuals(told: list[dict[str, Any]]) -> None:
    for each in told:
        assert each["broken off"]["after"] == each["broken off"]["before"]
        assert max(each["broken off"]["before"]) > 0


def test_what_a_callback_has_tried_out_is_taken_back(told: list[dict[str, Any]]) -> None:
    for each in told:
        for step, residual in each["tried out"].values():
            assert step == 0
            assert sum(residual) == 0


def test_what_a_callback_has_tried_out_in_a_fit_is_undone_and_no_later_fit_begins_with_it(
    told: list[dict[str, Any]],
) -> None:
    for each in told:
        tried = each["tried out in a fit"]
        assert tried["after"] == tried["before"]
        assert tried["before"][0] == STEPS // 2
        assert tried["end"][0] == STEPS
        assert tried["second fit"] == tried["end"]


def test_dashboards_take_the_callback(told: list[dict[str, Any]]) -> None:
    for each in told:
        ratios = [value for tag, value, _ in each["broken off"]["rows"] if tag == "gradwire/ratio"]
        assert len(ratios) == 5
        assert min(ratios) > 5


def test_lightnings_own_logger_gets_the_figures(told: list[dict[str, Any]]) -> None:
    rows = [row for row in told[0]["logged"]["rows"] if row.get("gradwire/ratio")]
    assert [int(row["step"]) for row in rows] == [2, 4, 6, 8]
    assert all(float(row["gradwire/ratio"]) > 5 for row in rows)
    assert all(float(row["gradwire/bytes_sent_per_step"]) > 0 for row in rows)


REFUSED = {
    "single device": r"ConfigError: strategy must be DDP, .*, or a ModelParallelStrategy, got 'SingleDeviceStrategy'",
    "own hook": r"ConfigError: ddp_comm_hook must be None with GradwireCallback.*fp16_compress_hook",
    "typo": r"ConfigError: .*'ration'.*did you mean 'ratio'",
    "two": r"ConfigError: callbacks must be with one GradwireCallback, .*got '2 of them'",
    "other package": r"ConfigError: Trainer must be of lightning.pytorch, .*import Trainer from there, got '",
    "no fit": r"ConfigError: GradwireCallback has no state before trainer.fit has begun",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_train_uncompressed_is_an_error(case: str, told: list[dict[str, Any]]) -> None:
    for each in told:
        assert re.search(REFUSED[case], each["refused"][case]), each["refused"][case]
