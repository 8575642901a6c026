"""The newcomer's first command, as a newcomer runs it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire import registry
from gradwire.errors import ConfigError, GroupError
from gradwire_lab.experiments.demo import DemoReport, compare
from gradwire_lab.experiments.models.resnet20 import resnet20_small
from gradwire_lab.experiments.recommended import MIN_NUMEL, recommended
from gradwire_lab.experiments.training_method import Method
from tests.forked import Forked, fork_workers

GRADWIRE = str(Path(sys.executable).parent / "gradwire")


@pytest.mark.timeout(600)
def test_two_workers_train_with_two_bits(tmp_path: Path) -> None:
    done = subprocess.run(
        [GRADWIRE, "demo", "--epochs", "2", "--json", "figures.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert "bit-identical" in done.stdout
    assert "44/44" in done.stderr
    report = json.loads((tmp_path / "figures.json").read_text())
    assert (report["workers"], report["epochs"], report["steps"]) == (2, 2, 44)
    none, twobit = report["rows"]
    assert (none["method"], twobit["method"]) == ("none", "twobit")
    assert none["parameters_identical"]
    assert twobit["parameters_identical"]
    assert none["digest"] != twobit["digest"]

    numels = [param.numel() for param in resnet20_small().parameters()]
    small = sum(numel for numel in numels if numel < MIN_NUMEL)
    assert none["bytes_per_step"] == 4 * sum(numels)
    expected = 4 * small + (sum(numels) - small) / 4
    assert expected <= twobit["bytes_per_step"] <= expected + 16 * len(numels)
    assert twobit["ratio"] == pytest.approx(none["bytes_per_step"] / twobit["bytes_per_step"])

    assert none["quality"] > 0.9
    assert twobit["quality"] > 0.9
    for row in (none, twobit):
        assert min(row["seconds"][phase] for phase in ("step", "compute", "communicate")) > 0
        assert row["nonfinite_steps"] == 0
    assert twobit["seconds"]["compress"] > 0
    assert twobit["seconds"]["decompress"] > 0


def with_batch(method: Method, batch: int) -> Method:
    return dataclasses.replace(method, recipe={**method.recipe, "batch": batch})


@pytest.mark.timeout(600)
def test_every_registered_compressor_runs_and_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_workers(monkeypatch)
    names = registry.names("compressors")
    # Five large batches in place of 22 small ones; gradiveq compresses only after some steps.
    methods = [recommended(name) for name in names]
    report = compare([each if each.label == "gradiveq" else with_batch(each, 256) for each in methods], epochs=1)
    assert [row["method"] for row in report.rows] == list(names)
    assert report.apart == []
    ratios = {row["method"]: row["ratio"] for row in report.rows}
    assert ratios.pop("none") == 1.0
    assert min(ratios.values()) > 1.9


def test_different_parameters_fail_the_command() -> None:
    row = {"method": "twobit", "parameters_identical": False}
    with pytest.raises(GroupError, match="different parameters after twobit"):
        DemoReport("digits", "test accuracy", 2, 1, 22, [row]).check()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--compressor", "twobits"], "unknown compressor 'twobits': did you mean 'twobit'?"),
        (["--compressor", "twobit:threshold=0"], "TwoBit.threshold must be a finite number > 0"),
        (["--workers", "1"], "1 is not in the range 2<=x<=64"),
    ],
)
def test_mistakes_are_told_before_anything_starts(arguments: list[str], said: str) -> None:
    process = Forked(["-m", "gradwire", "demo", *arguments], stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 2
    assert said in " ".join(err.split())
    assert "Traceback" not in err


def test_compare_checks_its_numbers() -> None:
    with pytest.raises(ConfigError, match=r"workers must be an integer in \[2, 64\], got 65"):
        compare([recommended("none")], workers=65)
    with pytest.raises(ConfigError, match="epochs must be an integer >= 1, got 0"):
        compare([recommended("none")], epochs=0)
