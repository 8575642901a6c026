"""A resumed run is the unbroken one, bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gradwire.compressors.sparse.topk import TopK
from gradwire.errors import ConfigError
from gradwire_lab.experiments.launch import launch
from gradwire_lab.experiments.loop import Loop
from gradwire_lab.experiments.records import Point
from gradwire_lab.experiments.run_snapshots import RunSnapshots, newest, steps_in
from gradwire_lab.experiments.train import Run, train
from gradwire_lab.experiments.training_method import Method
from gradwire_lab.netlab import Netlab
from lab.tests.experiments.resume_jobs import InterruptionError, brief, broken_and_whole, interfaces, interrupt_at
from lab.tests.netlab.conftest import here

CASES = [
    ("classification", "none"),
    ("classification", "topk:ratio=0.01"),
    ("classification", "powersgd"),
    ("classification", "qsgd"),
    ("classification", "twobit:threshold=auto"),
    ("classification", "dgc"),
    ("language", "topk"),
    ("gpt", "topk"),
    ("classification", "torch_powersgd:rank=2"),
    ("gpt", "qsgd:bits=2 corrected"),
    ("gpt", "topk by compressed_step:every=4"),
    ("gpt", "topk by compressed_step:keep=true"),
    ("gpt", "topk by compressed_step:late=true,every=2"),
    ("gpt", "efsignsgd by onebit_adam:freeze_step=3"),
    ("gpt", "qsgd by diloco:every=4"),
    ("gpt", "topk in shards"),
    ("gpt", "none in shards"),
    ("gpt", "qsgd:bits=2 in shards with blockwise8 corrected"),
]

OF_THREE = [CASES[0], ("classification", "efsignsgd in shards")]
"""Shards over three workers are of different sizes."""


def what_is_not_time(run: Run) -> dict[str, object]:
    history = [dataclasses.replace(point, seconds=0.0) for point in run.history]
    timed = ("seconds", "examples_per_second", "peak_rss_bytes", "start_rss_bytes", "resumed")
    return {**dataclasses.asdict(run), "history": history, **dict.fromkeys(timed)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", [2, 3])
def test_a_resumed_run_is_the_unbroken_one(workers: int, tmp_path: Path) -> None:
    cases = CASES if workers == 2 else OF_THREE
    for runs in launch(workers, broken_and_whole, cases, tmp_path):
        for case, (whole, resumed) in zip(cases, runs, strict=True):
            assert what_is_not_time(resumed) == what_is_not_time(whole), case
            assert (whole.resumed, resumed.resumed) == (0, 1)


@pytest.mark.timeout(600)
def test_a_resumed_run_gathers_the_estimate_of_its_weights_once_more(tmp_path: Path) -> None:
    for ((whole, resumed),) in launch(2, broken_and_whole, [("gpt", "none in shards with ef21:inner=loco")], tmp_path):
        assert resumed.digest == whole.digest
        assert [(point.loss, point.quality) for point in resumed.history] == [
            (point.loss, point.quality) for point in whole.history
        ]
        assert resumed.dense_bytes_per_step == whole.dense_bytes_per_step
        # The estimate is as large as the model, and each worker has sent its half of it to the other.
        assert (resumed.bytes_per_step - whole.bytes_per_step) * whole.steps == whole.state_bytes / 2
        assert resumed.state_bytes == whole.state_bytes


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


METHOD = Method("topk", TopK(ratio=0.05), {"min_numel": 256})


def test_the_two_newest_are_kept_and_a_damaged_one_is_passed_over(group: None, tmp_path: Path) -> None:
    whole = train(brief("classification"), METHOD, 1)
    first = RunSnapshots(tmp_path, {"seed": 0}, every=5)
    first.prepare()
    train(brief("classification"), METHOD, 1, snapshots=first)
    assert steps_in(tmp_path) == [10, 12]
    damaged = tmp_path / "step-00000012" / "rank0.pt"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    again = RunSnapshots(tmp_path, {"seed": 0}, resume=True)
    with pytest.warns(UserWarning, match="goes on from step-00000010, because of step-00000012: worker 0"):
        assert train(brief("classification"), METHOD, 1, snapshots=again).digest == whole.digest
    assert "step-00000012" in again.damaged[0]
    for path in tmp_path.glob("step-*/common.pt"):
        path.write_bytes(b"no archive")
    with (
        pytest.raises(ConfigError, match=r"no checkpoint in .* can be read"),
        Loop(brief("classification"), METHOD, 1) as loop,
    ):
        RunSnapshots(tmp_path, {"seed": 0}, resume=True).restore(loop)
    # What could not be read now may be readable tomorrow.
    assert steps_in(tmp_path) == [10, 12]


def broken_off(folder: Path, last: int, epochs: int = 1, *, lab: bool = False, resume: bool = True) -> None:
    """A run that goes on from the folder and ends within step ``last``, before that is saved."""
    snapshots = RunSnapshots(folder, {}, every=1, resume=resume)
    with pytest.raises(InterruptionError):
        train(brief("classification"), METHOD, epochs, watch=interrupt_at(last), lab=lab, snapshots=snapshots)


def test_a_run_that_is_broken_before_its_clocks_start_has_a_rate(group: None, tmp_path: Path) -> None:
    whole = train(brief("classification"), METHOD, 1)
    broken_off(tmp_path, 6, resume=False)
    broken_off(tmp_path, 9)
    resumed = train(brief("classification"), METHOD, 1, snapshots=RunSnapshots(tmp_path, {}, resume=True))
    assert what_is_not_time(resumed) == what_is_not_time(whole)
    assert (resumed.resumed, set(resumed.seconds)) == (2, set(whole.seconds))
    assert resumed.examples_per_second == pytest.approx(brief("classification").recipe.batch / resumed.seconds["step"])


def test_a_resumed_run_tells_the_epochs_before_too(group: None, tmp_path: Path) -> None:
    told = list[Point]()
    broken_off(tmp_path, 15, epochs=3, resume=False)
    snapshots = RunSnapshots(tmp_path, {}, resume=True)
    run = train(brief("classification"), METHOD, 3, snapshots=snapshots, tell=told.append)
    assert tuple(told) == run.history
    assert len(told) == 3


def test_a_run_that_had_ended_is_told_as_it_was(group: None, tmp_path: Path) -> None:
    def watch(step: int, loss: float) -> None:
        """One step needs much memory, and the process that goes on does not make it."""
        assert step != 7 or torch.ones(200_000_000, dtype=torch.uint8).all()

    ended = train(brief("classification"), METHOD, 2, watch=watch, snapshots=RunSnapshots(tmp_path, {}))
    again = train(brief("classification"), METHOD, 2, snapshots=RunSnapshots(tmp_path, {}, resume=True))
    assert what_is_not_time(again) == what_is_not_time(ended)
    assert (again.seconds, again.examples_per_second) == (ended.seconds, ended.examples_per_second)
    assert again.peak_rss_bytes > ended.peak_rss_bytes - 100_000_000
    assert again.start_rss_bytes == ended.start_rss_bytes
    assert again.resumed == 1


def test_an_earlier_version_may_have_saved_an_end_without_a_step_that_counted(group: None, tmp_path: Path) -> None:
    ended = train(brief("classification"), METHOD, 1, snapshots=RunSnapshots(tmp_path, {}))
    place = tmp_path / "step-00000012"
    own = torch.load(place / "rank0.pt", weights_only=True)
    own["clock"] |= {"steps": 0, "totals": dict.fromkeys(ended.seconds, 0.0)}
    del own["memory"]
    torch.save(own, place / "rank0.pt")
    (place / "SHA256SUMS").unlink()
    again = train(brief("classification"), METHOD, 1, snapshots=RunSnapshots(tmp_path, {}, resume=True))
    assert what_is_not_time(again) == what_is_not_time(ended)
    assert again.seconds == {"step": own["clock"]["elapsed"] / 12}
    assert again.examples_per_second == pytest.approx(brief("classification").recipe.batch / again.seconds["step"])


@dataclasses.dataclass
class Counter:
    """An interface that sends a thousand bytes in a step, and some for a checkpoint; the lab ends after a step."""

    sent: int
    last: int | None = None

    def watch(self, step: int, loss: float) -> None:
        self.sent += 1000
        if step == self.last:
            raise InterruptionError

    def sync(self, folder: Path) -> None:
        self.sent += 77

    def run(self, folder: Path) -> Run:
        snapshots = RunSnapshots(folder, {}, every=5, resume=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gradwire_lab.experiments.loop.interface_bytes", lambda: self.sent)
            patch.setattr("gradwire_lab.experiments.run_snapshots.sync", self.sync)
            return train(brief("classification"), METHOD, 2, watch=self.watch, lab=True, snapshots=snapshots)


def test_what_the_interface_sent_before_a_break_is_counted(group: None, tmp_path: Path) -> None:
    for counter in (Counter(10**6, last=6), Counter(5, last=18)):
        with pytest.raises(InterruptionError):
            counter.run(tmp_path)
    run = Counter(12345).run(tmp_path)
    assert (run.interface_bytes_per_step, run.resumed) == (1000, 2)
    without = train(brief("classification"), METHOD, 2, snapshots=RunSnapshots(tmp_path, {}, resume=True))
    assert without.interface_bytes_per_step is None


@pytest.mark.timeout(600)
def test_the_interfaces_of_a_lab_sent_as_much_for_a_resumed_run(tmp_path: Path) -> None:
    reason = here()
    if reason:
        pytest.skip(reason)
    with Netlab(2, "500mbit") as lab:
        for whole, resumed in launch(2, interfaces, tmp_path, lab=lab):
            assert whole is not None
            assert resumed == pytest.approx(whole, rel=0.05)


@pytest.mark.parametrize("text", ["", '{"seed": ', "[3]", None])
def test_settings_that_cannot_be_read_are_told(text: str | None, tmp_path: Path) -> None:
    (tmp_path / "step-00000007").mkdir()
    if text is not None:
        (tmp_path / "settings.json").write_text(text)
    with pytest.raises(ConfigError, match=r"settings\.json must hold the settings of the run that is saved there"):
        RunSnapshots(tmp_path, {"seed": 0}, resume=True).prepare()


def test_a_draft_is_no_checkpoint_and_is_cleared_away(group: None, tmp_path: Path) -> None:
    draft = tmp_path / ".step-00000007"
    draft.mkdir()
    torch.save({}, draft / "common.pt")
    assert newest(tmp_path) is None
    snapshots = RunSnapshots(tmp_path, {}, resume=True)
    snapshots.prepare()
    assert train(brief("classification"), METHOD, 1, snapshots=snapshots).resumed == 0
    assert not draft.exists()
    assert newest(tmp_path) == tmp_path / "step-00000012"


def test_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    settings = {"seed": 0, "compressor": {"name": "topk", "ratio": 0.01}}
    RunSnapshots(tmp_path, settings).prepare()
    (tmp_path / "step-00000010").mkdir()
    with pytest.raises(ConfigError, match=r"holds a run at step 10: go on with it \(--resume\)"):
        RunSnapshots(tmp_path, settings).prepare()
    other = {"seed": 1, "compressor": {"name": "topk", "ratio": 0.1}}
    with pytest.raises(ConfigError, match=r"compressor\.ratio was 0\.01, is 0\.1; seed was 0, is 1"):
        RunSnapshots(tmp_path, other, resume=True).prepare()
    RunSnapshots(tmp_path, settings, resume=True).prepare()
