"""A sweep makes every run once, whatever happens to it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from gradwire.cli._folder import app
from gradwire.errors import ConfigError
from gradwire_lab import report
from gradwire_lab.experiments import sweep as sweeping
from gradwire_lab.experiments.estimates import Estimates
from gradwire_lab.experiments.job import Job
from gradwire_lab.experiments.launch import launch
from gradwire_lab.experiments.records import Record, RunSettings, append, read
from gradwire_lab.experiments.suite import load
from gradwire_lab.experiments.sweep import Order, note, only_one, standing, sweep
from lab.tests.experiments.jobs import die_after_runs, forking_lane, threads_after_runs
from tests import forked

SUITE = """
tasks = ["classification"]
methods = ["none", "topk", "qsgd"]
seeds = 2
[task.classification]
epochs = 1
recipe = { batch = 240 }
[method.topk]
options = { strategy = "allreduce" }
"""


def order_of(folder: Path, text: str = SUITE, **options: object) -> Order:
    path = folder / "suite.toml"
    path.write_text(text)
    return Order(load(path), folder / "results.jsonl", **options)


def run(*arguments: str) -> Result:
    """``gradwire sweep`` in this process."""
    return CliRunner().invoke(app, ["sweep", *arguments], prog_name="gradwire")


@pytest.fixture
def forked_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of groups side by side fork, and so do their workers; and the time of grace is a second."""
    monkeypatch.setattr(sweeping, "lane", forking_lane)
    monkeypatch.setattr(sweeping, "multiprocessing", SimpleNamespace(get_context=lambda _: forked.context()))


def ids(path: Path) -> list[str]:
    return [record.settings.id for record in read(path)]


@pytest.mark.timeout(600)
def test_killed_and_started_again_it_makes_each_run_once_and_a_failure_stops_no_other(tmp_path: Path) -> None:
    order = order_of(tmp_path, SUITE.replace(', "qsgd"', ""))
    arguments = [str(tmp_path / "suite.toml"), "--results", str(order.results)]
    command = ["-m", "gradwire", "sweep", *arguments]
    process = forked.Forked(command, stderr=subprocess.PIPE, begin=forked.fork_own_workers)
    deadline = time.monotonic() + 300
    try:
        while not (order.results.exists() and order.results.read_bytes().count(b"\n")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "no run ended within 300 s"
            time.sleep(0.02)
    finally:
        process.kill()
    process.communicate(timeout=200)
    before = ids(order.results)
    assert 0 < len(before) < len(order.jobs)
    done = run(*arguments)
    assert done.exit_code == 1
    assert "2 runs ended well, 2 failed; nothing is left" in done.stdout
    after = ids(order.results)
    assert after[: len(before)] == before
    assert sorted(after) == sorted(job.settings.id for job in order.jobs)
    for record in read(order.results):
        if record.settings.method == "topk":
            assert (record.status, record.quality) == ("failed", None)
            assert "payloads of 'topk' cannot be summed" in record.error
        else:
            assert (record.status, record.identical, record.steps, len(record.history)) == ("ok", True, 5, 1)
            assert record.wall_seconds is not None
    assert run(*arguments).exit_code == 1
    assert ids(order.results) == after


def recorded(job: Job, seconds: float | None, **changes: object) -> Record:
    return Record(job.settings, "top-1", higher_is_better=True, wall_seconds=seconds, steps=10, **changes)


def test_the_other_seeds_run_at_the_rate_that_was_best(tmp_path: Path) -> None:
    suite, results = tmp_path / "suite.toml", tmp_path / "results.jsonl"
    suite.write_text(
        'tasks = ["classification"]\nmethods = ["none"]\nseeds = 2\nrates = [1e-9, 0.1]\n'
        "[task.classification]\nepochs = 1\nrecipe = { batch = 240 }\n"
    )
    done = run(str(suite), "--results", str(results))
    assert done.exit_code == 0, done.output
    assert "nothing is left" in done.stdout
    assert [(record.settings.seed, record.settings.recipe["lr"]) for record in read(results)] == [
        (0, 1e-9),
        (0, 0.1),
        (1, 0.1),
    ]
    made = results.read_bytes()
    assert run(str(suite), "--results", str(results)).exit_code == 0
    assert results.read_bytes() == made


def test_what_failed_is_left_again_only_if_it_is_asked_for(tmp_path: Path) -> None:
    order = order_of(tmp_path)
    append(order.results, recorded(order.jobs[0], None, status="failed", error="no luck"))
    append(order.results, recorded(order.jobs[1], 5.0))
    now = standing(order)
    assert (now.ok, [record.error for record in now.failed], len(now.left)) == (1, ["no luck"], 4)
    assert standing(dataclasses.replace(order, retry=True)).left[0] == order.jobs[0]
    append(order.results, recorded(order.jobs[0], 3.0))
    assert (standing(order).ok, standing(order).failed) == (2, [])
    append(order.results, recorded(order.jobs[0], None, status="failed", error="no luck"))
    assert (standing(order).ok, standing(order).failed) == (2, [])
    assert len(standing(dataclasses.replace(order, retry=True)).left) == 4
    assert {run.status for run in report.read([order.results]).runs} == {"ok"}


def test_a_failed_run_that_was_measured_is_reported_as_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = order_of(tmp_path)
    wrong = {"status": "failed", "error": "the workers' parameters differ", "quality": 0.9}
    for job, changes in zip(order.jobs[:2], ({"quality": 0.9}, wrong), strict=True):
        note(order, recorded(job, 1.0, **changes))
    good, bad = capsys.readouterr().err.splitlines()
    assert good.endswith("seed 0: top-1 0.9")
    assert bad.endswith("seed 0: FAILED: the workers' parameters differ")


def test_what_would_not_fit_into_the_time_is_not_begun(tmp_path: Path) -> None:
    order = order_of(tmp_path, deadline=time.time() + 50)
    for job in order.jobs[:3]:
        append(order.results, recorded(job, 100.0))
    after = sweep(order)
    assert len(after.left) == 3
    assert after.seconds == pytest.approx(300)
    assert len(ids(order.results)) == 3


def test_two_sweeps_do_not_write_the_same_file(tmp_path: Path) -> None:
    order = order_of(tmp_path)
    with only_one(order.results), pytest.raises(ConfigError, match=r"results\.jsonl is being written by another sweep"):
        sweep(order)
    with only_one(order.results):
        pass
    other = tmp_path / "other.jsonl"
    other.symlink_to(order.results)
    with only_one(other), pytest.raises(ConfigError, match=r"results\.jsonl is being written by another sweep"):
        sweep(order)


def test_a_sweep_begins_nothing_that_it_could_not_record(tmp_path: Path) -> None:
    order = order_of(tmp_path)
    order.results.write_text("notes of mine")
    with pytest.raises(ConfigError, match=r"results\.jsonl must be a file of results"):
        sweep(order)
    assert order.results.read_text() == "notes of mine"


SHORT = """
tasks = ["classification"]
methods = ["none"]
[task.classification]
epochs = 1
recipe = { batch = 240 }
"""
LONG = """
tasks = ["classification", "recommendation"]
methods = ["none"]
workers = [1]
[task.classification]
epochs = 1
[task.recommendation]
epochs = 1000000
"""


def in_budget(order: Order, *more: str) -> list[str]:
    """The arguments for a sweep that is to end after 3 seconds, and the time of grace."""
    return [str(order.results.with_name("suite.toml")), "--results", str(order.results), "--budget", "3s", *more]


@pytest.mark.timeout(600)
def test_a_run_that_goes_on_when_the_time_is_over_is_stopped_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "GRACE", 1.0)
    order = order_of(tmp_path, LONG)
    append(order.results, recorded(order.jobs[0], 1.0))
    done = run(*in_budget(order))
    assert done.exit_code == 0, done.output
    assert "1 run ended well, 0 failed; left are 1: 1 of recommendation" in done.stdout
    # Where the worker takes longer to import torch than the time allows, no run had begun, and the group is named.
    begun, not_begun = "recommendation none, 1 workers, none, seed 0: left, because ", "a group ended: "
    assert done.stderr.replace(not_begun, begun).startswith(f"{begun}the time was over at "), done.stderr
    assert ids(order.results) == [order.jobs[0].settings.id]


@pytest.mark.timeout(600)
def test_groups_side_by_side_end_in_time_too(tmp_path: Path, forked_lanes: None) -> None:
    order = order_of(
        tmp_path, LONG.replace('"classification", ', "").replace("[task.classification]\nepochs = 1\n", "")
    )
    done = run(*in_budget(order, "--jobs", "2"))
    assert done.exit_code == 0, done.output
    assert "0 runs ended well, 0 failed; left are 1: 1 of recommendation" in done.stdout
    assert not order.results.exists()


@pytest.mark.timeout(600)
def test_a_run_that_is_in_the_file_is_not_blamed_for_the_end_of_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeping, "serve", die_after_runs)
    order = order_of(tmp_path, SHORT)
    after = sweep(order)
    assert (after.ok, after.failed, after.left) == (1, [], [])
    assert ids(order.results) == [order.jobs[0].settings.id]
    # Which of the two is named depends on who is seen first: the one that died, or the one that it left alone.
    assert "a group ended: worker" in capsys.readouterr().err


def test_the_nearest_runs_tell_how_long_one_takes() -> None:
    settings = RunSettings("language", "lstm_small", "stdlib", "topk", {"name": "topk"}, workers=2, epochs=2)
    other = dataclasses.replace(settings, method="qsgd")
    four = dataclasses.replace(settings, workers=4)

    def ran(known: RunSettings, wall_seconds: float, steps: int = 20) -> Record:
        return Record(known, "", False, steps=steps, wall_seconds=wall_seconds)

    estimates = Estimates([ran(settings, 20.0), ran(other, 40.0)])
    assert estimates.of(dataclasses.replace(settings, seed=1)) == 20.0
    assert estimates.of(dataclasses.replace(settings, epochs=4)) == 40.0
    assert estimates.of(dataclasses.replace(settings, method="dgc")) == 30.0
    assert estimates.of(four) == 30.0
    unknown = dataclasses.replace(settings, task="segmentation")
    assert estimates.of(unknown) is None
    assert estimates.total([settings, unknown]) == 40.0
    assert Estimates([]).total([settings]) is None
    # Shorter runs tell of longer ones by their steps, and of as many the steps that there were data for.
    shorter, longer, most = (dataclasses.replace(settings, recipe={"steps": steps}) for steps in (5, 30, 500))
    estimates = Estimates([ran(shorter, 10.0, steps=10), ran(most, 200.0, steps=200)])
    assert [estimates.of(each) for each in (shorter, longer, most)] == [10.0, 60.0, 200.0]


@pytest.mark.timeout(600)
def test_side_by_side_the_records_say_that_times_mean_nothing(tmp_path: Path, forked_lanes: None) -> None:
    order = order_of(tmp_path, f"workers = [1]\nseeds = 2{SHORT}", parallel=2)
    assert sweep(order).left == []
    lines = [json.loads(line) for line in order.results.read_text().splitlines()]
    assert sorted(line["settings"]["seed"] for line in lines) == [0, 1]
    assert [line["environment"]["jobs"] for line in lines] == [2, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.timeout(600)
def test_a_group_keeps_no_thread_of_its_earlier_runs(tmp_path: Path) -> None:
    order, begun = order_of(tmp_path, SHORT.replace('"none"', '"none", "topk", "powersgd"')), tmp_path / "begun"
    for first, *later in launch(2, threads_after_runs, order, begun, timeout=300):
        assert later == [first] * 2
    assert [record.status for record in read(order.results)] == ["ok"] * 3
