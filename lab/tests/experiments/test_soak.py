"""The soak holds, and notices what does not."""

from __future__ import annotations

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from gradwire.cli._folder import app
from gradwire_lab.experiments.soak import FAULTS, GROWTH, ROUNDING, STRETCH, Soaked, SoakPlan, SoakReport, soak
from lab.tests.experiments.leaky import Leaky

GOOD = SoakReport(100, 3, dict.fromkeys(FAULTS, 1), 1, 1, 1e-7, "topk", True, ((10**8, 10**8), (10**8, 10**8)), 2.0)


def run(*arguments: str):
    return CliRunner().invoke(app, ["check", "soak", *arguments], prog_name="gradwire")


@pytest.mark.timeout(600)
def test_nothing_is_lost_through_faults_restarts_and_changes() -> None:
    done = run("--minutes", "0", "--steps", str(4 * STRETCH), "--seed", "7", "--workers", "2", "--json", "-")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["broken"] == []
    assert told["steps"] == 4 * STRETCH
    assert told["faults"]["nan"] + told["faults"]["inf"] > 0
    assert min(told["faults"]["huge"], told["faults"]["zero"]) > 0
    assert 0 < told["skipped"] < 4 * STRETCH
    assert min(told["restarts"], told["changes"]) > 0
    assert told["identical"]
    assert 0 < told["error"] <= ROUNDING
    assert len(told["rss"]) == 2
    assert told["loss"] < 3


@pytest.mark.timeout(600)
def test_a_memory_that_forgets_is_noticed() -> None:
    report = soak(SoakPlan(steps=STRETCH, workers=2, memory=Leaky()))
    assert report.error > 10 * ROUNDING
    assert any("of the gradients was lost or came twice" in each for each in report.broken)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"identical": False}, "parameters differ between workers"),
        ({"error": 2 * ROUNDING}, "of the gradients was lost or came twice"),
        ({"error": float("nan")}, "nan of the gradients was lost"),
        ({"rss": ((10**8, 10**8), (10**8, 2 * 10**8))}, "the memory of workers grew: 1 by 100,000,000 bytes"),
    ],
)
def test_what_does_not_hold_ends_with_exit_code_1(changed: dict, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = dataclasses.replace(GOOD, **changed)
    assert len(broken.broken) == 1
    assert text in broken.broken[0]
    # The verdict alone: the run itself is real in the tests above.
    monkeypatch.setattr("gradwire_lab.commands._check_soak.soak", lambda _: broken)
    done = run("--steps", "1")
    assert done.exit_code == 1
    assert f"FAILED: {broken.broken[0]}" in " ".join(done.stdout.split())


class Booked(Soaked):
    """A worker alone, with an account of its own in place of training."""

    def __init__(self, gone: dict[str, float]) -> None:
        self.error, self.worst = 0.0, ""
        self.gone = {name: torch.tensor([lost]).double() for name, lost in gone.items()}
        self.size = dict.fromkeys(gone, 1.0)
        self.before = self._residuals()
        methods = SimpleNamespace(compressor=SimpleNamespace(name="topk"))
        self.state = SimpleNamespace(exchange=SimpleNamespace(methods=methods))

    def _residuals(self) -> dict[str, torch.Tensor]:
        return {name: torch.zeros(1).double() for name in self.gone}

    def _open_books(self) -> None:
        pass


@pytest.mark.parametrize("gone", [{"a": 0.1, "b": math.nan}, {"a": math.nan, "b": 0.1}])
def test_a_nan_in_the_books_stays_whatever_comes_later(gone: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.all_reduce", lambda _: None)
    worker = Booked(gone)
    worker._settle_up()
    worker.gone = {"a": torch.tensor([0.2]).double()}
    worker._settle_up()
    assert math.isnan(worker.error)
    assert dataclasses.replace(GOOD, error=worker.error).broken


def test_a_little_growth_is_none() -> None:
    assert dataclasses.replace(GOOD, rss=((10**8, 10**8 + GROWTH[0]),)).broken == []


def test_something_must_be_asked_for() -> None:
    done = run("--minutes", "0")
    assert done.exit_code == 2
    assert "one of --minutes and --steps must be above 0" in done.stderr
