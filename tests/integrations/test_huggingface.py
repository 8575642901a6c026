"""Accelerate and Transformers themselves, on two real processes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gradwire.testing.processes import run_ranks
from tests.integrations.huggingface_jobs import STEPS, everything


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(2, everything, str(tmp_path_factory.mktemp("huggingface")), timeout=560)


pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("way", ["accelerate", "trainer"])
def test_gradients_travel_compressed_and_ranks_stay_equal(way: str, told: list[dict[str, Any]]) -> None:
    metrics = [each[way]["unbroken"]["metrics"] for each in told]
    assert [(each["steps"], each["nonfinite_steps"]) for each in metrics] == [(STEPS, 0)] * 2
    assert all(each["ratio"] > 5 for each in metrics)
    assert told[0][way]["unbroken"]["digest"] == told[1][way]["unbroken"]["digest"]


@pytest.mark.parametrize("way", ["accelerate", "trainer"])
def test_each_rank_saves_its_residuals_and_a_resumed_run_is_the_unbroken_one(
    way: str, told: list[dict[str, Any]]
) -> None:
    for each in told:
        assert each[way]["files"] == ["gradwire-0.pt", "gradwire-1.pt"]
        assert each[way]["resumed"]["digest"] == each[way]["unbroken"]["digest"]
        assert each[way]["without"]["digest"] != each[way]["unbroken"]["digest"], "a weak test: residuals do not matter"


def test_a_second_train_goes_on_under_the_same_hook(told: list[dict[str, Any]]) -> None:
    assert [each["trainer"]["without"]["steps after a second train"] for each in told] == [STEPS // 2 + STEPS] * 2


ASKED = r"resume_from_checkpoint must be what trainer.train is given, or False for residuals of zero, got "
REFUSED = {
    "not prepared": r"model must be what accelerator.prepare wrapped .*, got 'Sequential of .* 2 processes",
    "own hook": r"ConfigError: comm_hook of DistributedDataParallelKwargs must be left out with gradwire, got .*FP16",
    "load": r"checkpoint must be a folder with gradwire-[01].pt, which is written beside it, got .*other",
    "not told": ASKED + "None",
    "told too much": ASKED + ".*checkpoint-3",
    "rank missing": r"rank 1 was configured wrongly: ConfigError: checkpoint must be a folder with gradwire-1.pt",
    "another step": r"ConfigError: step of gradwire-[01].pt must be 3, got 6",
    "early": r"ConfigError: GradwireCallback has no state before trainer.train has begun",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_lose_residuals_or_compress_nothing_is_an_error(case: str, told: list[dict[str, Any]]) -> None:
    for each in told:
        assert re.search(REFUSED[case], each["refused"][case]), each["refused"][case]


def test_a_trainer_without_other_processes_is_an_error(told: list[dict[str, Any]]) -> None:
    for each in told:
        assert re.search(r"ConfigError: model must be wrapped into .* got 'GPT2LMHeadModel'", each["alone"])
