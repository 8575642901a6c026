"""A resumed run is the unbroken one, bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gradwire.bench.launch import launch
from gradwire.bench.loop import Loop
from gradwire.bench.method import Method
from gradwire.bench.snapshots import Snapshots, newest, steps_in
from gradwire.bench.tasks.classification import Classification
from gradwire.bench.train import Run, train
from gradwire.compressors.topk import TopK
from gradwire.errors import ConfigError
from tests.bench.resume_jobs import broken_and_whole

CASES = [
    ("classification", "none"), ("classification", "topk:ratio=0.01"), ("classification", "powersgd"),
    ("classification", "qsgd"), ("classification", "twobit:threshold=auto"), ("classification", "dgc"),
    ("language", "topk"),
]  # fmt: skip


def what_is_not_time(run: Run) -> dict[str, object]:
    history = [dataclasses.replace(point, seconds=0.0) for point in run.history]
    timed = ("seconds", "examples_per_second", "peak_rss_bytes", "resumed")
    return {**dataclasses.asdict(run), "history": history, **dict.fromkeys(timed)}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", [2, 3])
def test_a_resumed_run_is_the_unbroken_one(workers: int, tmp_path: Path) -> None:
    cases = CASES if workers == 2 else CASES[:1]
    for runs in launch(workers, broken_and_whole, cases, tmp_path):
        for case, (whole, resumed) in zip(cases, runs, strict=True):
            assert what_is_not_time(resumed) == what_is_not_time(whole), case
            assert (whole.resumed, resumed.resumed) == (0, 1)


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


METHOD = Method("topk", TopK(ratio=0.05), {"min_numel": 256})


def test_the_two_newest_are_kept_and_a_damaged_one_is_passed_over(group: None, tmp_path: Path) -> None:
    whole = train(Classification(), METHOD, 1)
    first = Snapshots(tmp_path, {"seed": 0}, every=5)
    first.prepare()
    train(Classification(), METHOD, 1, snapshots=first)
    assert steps_in(tmp_path) == [20, 22]
    damaged = tmp_path / "step-00000022" / "rank0.pt"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    again = Snapshots(tmp_path, {"seed": 0}, resume=True)
    assert train(Classification(), METHOD, 1, snapshots=again).digest == whole.digest
    assert "step-00000022" in again.damaged[0]
    for path in tmp_path.glob("step-*/common.pt"):
        path.write_bytes(b"no archive")
    with (
        pytest.raises(ConfigError, match=r"no checkpoint in .* can be read"),
        Loop(Classification(), METHOD, 1) as loop,
    ):
        Snapshots(tmp_path, {"seed": 0}, resume=True).restore(loop)
    # What could not be read now may be readable tomorrow.
    assert steps_in(tmp_path) == [20, 22]


@pytest.mark.parametrize("text", ["", '{"seed": ', "[3]", None])
def test_settings_that_cannot_be_read_are_told(text: str | None, tmp_path: Path) -> None:
    (tmp_path / "step-00000007").mkdir()
    if text is not None:
        (tmp_path / "settings.json").write_text(text)
    with pytest.raises(ConfigError, match=r"settings\.json must hold the settings of the run that is saved there"):
        Snapshots(tmp_path, {"seed": 0}, resume=True).prepare()


def test_a_draft_is_no_checkpoint_and_is_cleared_away(group: None, tmp_path: Path) -> None:
    draft = tmp_path / ".step-00000007"
    draft.mkdir()
    torch.save({}, draft / "common.pt")
    assert newest(tmp_path) is None
    snapshots = Snapshots(tmp_path, {}, resume=True)
    snapshots.prepare()
    assert train(Classification(), METHOD, 1, snapshots=snapshots).resumed == 0
    assert not draft.exists()
    assert newest(tmp_path) == tmp_path / "step-00000022"


def test_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    settings = {"seed": 0, "compressor": {"name": "topk", "ratio": 0.01}}
    Snapshots(tmp_path, settings).prepare()
    (tmp_path / "step-00000010").mkdir()
    with pytest.raises(ConfigError, match=r"holds a run at step 10: go on with it \(--resume\)"):
        Snapshots(tmp_path, settings).prepare()
    other = {"seed": 1, "compressor": {"name": "topk", "ratio": 0.1}}
    with pytest.raises(ConfigError, match=r"compressor\.ratio was 0\.01, is 0\.1; seed was 0, is 1"):
        Snapshots(tmp_path, other, resume=True).prepare()
    Snapshots(tmp_path, settings, resume=True).prepare()
