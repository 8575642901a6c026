"""Accelerate and Transformers themselves, on two real processes."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from gradwire.testing.processes import run_ranks
from tests.frameworks.huggingface_jobs import MOMENTS, STEPS, everything


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(2, everything, str(tmp_path_factory.mktemp("huggingface")), timeout=800.0)


@pytest.mark.parametrize("way", ["accelerate", "trainer"])
def test_gradients_travel_compressed_and_ranks_stay_equal(way: str, told: list[dict[str, Any]]) -> None:
    metrics = [each[way]["unbroken"]["metrics"] for each in told]
    assert [(each["steps"], each["nonfinite_steps"]) for each in metrics] == [(STEPS, 0)] * 2
    assert all(each["ratio"] > 5 for each in metrics)
    assert told[0][way]["unbroken"]["digest"] == told[1][way]["unbroken"]["digest"]


def test_without_a_method_the_trainer_watches_and_ranks_stay_equal(told: list[dict[str, Any]]) -> None:
    auto = [each["trainer"]["auto"] for each in told]
    assert [each["metrics"]["steps"] for each in auto] == [STEPS, STEPS]
    assert auto[0]["digest"] == auto[1]["digest"]


@pytest.mark.parametrize("way", ["accelerate", "trainer"])
def test_each_rank_saves_its_residuals_and_a_resumed_run_is_the_unbroken_one(
    way: str, told: list[dict[str, Any]]
) -> None:
    for each in told:
        assert each[way]["files"] == ["gradwire-0.pt", "gradwire-1.pt"]
        assert each[way]["resumed"]["digest"] == each[way]["unbroken"]["digest"]
        assert each[way].get("late", each[way]["resumed"])["digest"] == each[way]["unbroken"]["digest"]
        assert each[way]["without"]["digest"] != each[way]["unbroken"]["digest"], "a weak test: residuals do not matter"


def test_a_second_train_goes_on_under_the_same_hook(told: list[dict[str, Any]]) -> None:
    assert [each["trainer"]["without"]["steps after a second train"] for each in told] == [STEPS // 2 + STEPS] * 2


def test_models_of_the_same_names_under_one_accelerator_keep_their_residuals_apart(told: list[dict[str, Any]]) -> None:
    for each in told:
        two = each["two models"]
        assert two["unbroken"]["steps"] == [STEPS, STEPS]
        assert two["files"] == ["gradwire-0.pt", "gradwire-1.pt", "gradwire_1-0.pt", "gradwire_1-1.pt"]
        assert two["resumed"]["digests"] == two["unbroken"]["digests"] == told[0]["two models"]["unbroken"]["digests"]
        assert two["unbroken"]["digests"][0] != two["unbroken"]["digests"][1]


def test_the_trainer_accumulates_clips_and_deletes_checkpoints(told: list[dict[str, Any]]) -> None:
    for each in told:
        ways = each["ways"]
        assert (ways["metrics"]["steps"], ways["metrics"]["nonfinite_steps"]) == (STEPS, 0)
        # Of the checkpoint that was deleted at the end nothing was written too late.
        assert ways["files"] == [f"checkpoint-{STEPS // 2}/gradwire-{rank}.pt" for rank in range(2)]


def test_a_second_train_goes_on_from_the_residuals_of_its_checkpoint(told: list[dict[str, Any]]) -> None:
    for each in told:
        ways = each["ways"]
        assert re.search(ASKED + "None", ways["forgotten"])
        assert ways["again"] == ways["residual"]
        assert ways["without"] != ways["residual"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_is_saved_on_sigterm_has_the_residuals(moment: str, told: list[dict[str, Any]]) -> None:
    preempted = [each["preempted"][moment] for each in told]
    assert [each["files"] for each in preempted] == [[f"checkpoint-2/gradwire-{rank}.pt" for rank in range(2)]] * 2
    assert preempted[0]["digest"] == preempted[1]["digest"]
    if moment == "between two steps":
        assert preempted[0]["digest"] == told[0]["trainer"]["unbroken"]["digest"]


def test_each_trial_of_a_search_keeps_its_residuals_in_its_own_folder(told: list[dict[str, Any]]) -> None:
    files = [f"run-{trial}/checkpoint-{STEPS // 2}/gradwire-{rank}.pt" for trial in range(2) for rank in range(2)]
    for each in told:
        assert each["trials"]["files"] == files
        assert each["trials"]["saved"] == each["trials"]["ends"]
        assert each["trials"]["ends"][0] != each["trials"]["ends"][1]


def test_ranks_on_other_hosts_delete_their_files_with_the_checkpoints(told: list[dict[str, Any]]) -> None:
    """A checkpoint that was moved away where the Trainer saves may be wanted again, with all files of it."""
    first, other = (each["hosts"] for each in told)
    assert first == [*(f"checkpoint-{step}/gradwire-0.pt" for step in (5, 6)), "moved-1/gradwire-0.pt"]
    assert other == [f"checkpoint-{step}/gradwire-1.pt" for step in (1, 5, 6)]


def test_a_callback_that_was_removed_writes_nothing_and_one_without_a_limit_keeps_no_list(
    told: list[dict[str, Any]],
) -> None:
    assert [each["removed"] for each in told] == [{"written": 4, "kept in mind": [], "afterwards": []}] * 2


ASKED = r"resume_from_checkpoint must be what trainer.train is given, or False for residuals of zero, got "
REFUSED = {
    "not prepared": r"model must be what accelerator.prepare wrapped .*, got 'Sequential of .* 2 processes",
    "own hook": r"ConfigError: comm_hook of DistributedDataParallelKwargs must be left out with gradwire, got .*FP16",
    "load": r"checkpoint must be a folder with gradwire-[01].pt, which is written beside it, got .*other",
    "not told": ASKED + "None",
    "told too much": ASKED + ".*checkpoint-3",
    "rank missing": r"rank 1 was configured wrongly: ConfigError: checkpoint must be a folder with gradwire-1.pt",
    "another step": r"ConfigError: step of gradwire-[01].pt must be 3, got 6",
    "early": r"ConfigError: the callback of compress_trainer has no state before trainer.train has begun",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_lose_residuals_or_compress_nothing_is_an_error(case: str, told: list[dict[str, Any]]) -> None:
    for each in told:
        assert re.search(REFUSED[case], each["refused"][case]), each["refused"][case]


def test_a_trainer_without_other_processes_is_an_error(told: list[dict[str, Any]]) -> None:
    for each in told:
        assert re.search(r"ConfigError: model must be wrapped into .* got 'GPT2LMHeadModel'", each["alone"])


def test_the_callback_is_found_by_its_former_name() -> None:
    module = importlib.import_module("gradwire.frontends.adapters.transformers")
    with pytest.warns(DeprecationWarning, match=r"GradwireCallback is .*\.GradwireTrainerCallback now"):
        assert module.GradwireCallback is module.GradwireTrainerCallback
    with pytest.raises(AttributeError, match="no attribute 'Callback'"):
        _ = module.Callback
