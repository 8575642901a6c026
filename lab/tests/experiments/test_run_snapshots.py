"""A checkpoint is taken as it was written, or not at all."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch.distributed as dist

from gradwire_lab.experiments.launch import launch
from gradwire_lab.experiments.method_text import method_of
from gradwire_lab.experiments.run_snapshots import RunSnapshots, steps_in
from gradwire_lab.experiments.train import train
from lab.tests.experiments.resume_jobs import brief, flip, one_full_disk, past_damage
from tests.once import once

METHOD = method_of("topk")


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@once
def kept() -> tuple[str, dict[str, bytes]]:
    """The digest of a run, and the files that it leaves: its checkpoints of steps 10 and 12."""
    with TemporaryDirectory() as folder:
        digest = train(brief("classification"), METHOD, 1, snapshots=RunSnapshots(Path(folder), {}, every=5)).digest
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return digest, {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def ended(group: None, tmp_path: Path) -> str:
    """The digest of a run whose checkpoints of steps 10 and 12 are left."""
    digest, files = kept()
    for name, data in files.items():
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data)
    return digest


def resumed(folder: Path) -> tuple[str, list[int]]:
    """The digest of the run when it has gone on, and the steps that it made for it."""
    steps: list[int] = []
    snapshots = RunSnapshots(folder, {}, resume=True)
    run = train(brief("classification"), METHOD, 1, snapshots=snapshots, watch=lambda step, _: steps.append(step))
    return run.digest, steps


def test_sums_are_those_of_the_files(ended: str, tmp_path: Path) -> None:
    assert steps_in(tmp_path) == [10, 12]
    for place in tmp_path.glob("step-*"):
        lines = (place / "SHA256SUMS").read_text().splitlines()
        found = {name: hashlib.sha256((place / name).read_bytes()).hexdigest() for name in ("common.pt", "rank0.pt")}
        assert dict(reversed(line.split("  ")) for line in lines) == found
        assert {path.name for path in place.iterdir()} == {"SHA256SUMS", *found}


def older(file: Path) -> None:
    """Garbage on which torch ends with a KeyError, in a checkpoint without sums."""
    file.write_bytes(b"\x80\x02h\x05.")
    (file.parent / "SHA256SUMS").unlink()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit": flip,
    "garbage": lambda file: file.write_bytes(b"\x80\x02h\x05."),
    "garbage without sums": older,
    "nothing": Path.unlink,
    "a sum cut off": lambda file: (file.parent / "SHA256SUMS").write_text("5feceb66"),
}


@pytest.mark.parametrize("name", ["common.pt", "rank0.pt"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(damage: str, name: str, ended: str, tmp_path: Path) -> None:
    DAMAGE[damage](tmp_path / "step-00000012" / name)
    said = f"{tmp_path}: goes on from step-00000010, because of step-00000012: worker 0: "
    with pytest.warns(UserWarning, match=re.escape(said)):
        assert resumed(tmp_path) == (ended, [10, 11])
    # It was written anew, and whole.
    assert resumed(tmp_path) == (ended, [])


def test_a_checkpoint_without_sums_is_read(ended: str, tmp_path: Path) -> None:
    for place in tmp_path.glob("step-*"):
        (place / "SHA256SUMS").unlink()
    assert resumed(tmp_path) == (ended, [])


def test_what_is_in_the_way_of_a_checkpoint_is_replaced(group: None, tmp_path: Path) -> None:
    """Damaged, it is taken away; but a file system may not do so at once."""
    leftover = tmp_path / "step-00000012"

    def watch(step: int, loss: float) -> None:
        leftover.mkdir(exist_ok=True)
        (leftover / "rank0.pt").write_bytes(b"cut off")

    whole = train(brief("classification"), METHOD, 1, snapshots=RunSnapshots(tmp_path, {}), watch=watch)
    assert resumed(tmp_path) == (whole.digest, [])


@pytest.mark.timeout(600)
def test_all_workers_pass_over_what_one_of_them_cannot_read(tmp_path: Path) -> None:
    found = launch(2, past_damage, tmp_path)
    for digest, again, first_step, _ in found:
        assert (again, first_step) == (digest, 10)
    (said,), none = (said for *_, said in found)
    assert f"{tmp_path}: goes on from step-00000010, because of step-00000012: worker 1: " in said
    assert "the SHA-256 of rank1.pt must be" in said
    assert none == []


@pytest.mark.timeout(600)
def test_a_full_disk_of_one_worker_is_told_by_all(tmp_path: Path) -> None:
    said = launch(2, one_full_disk, tmp_path)
    assert said[0] == said[1]
    assert re.search(r"\.step-00000005 cannot be written: worker 1: OSError: .*File too large", said[0])
    assert steps_in(tmp_path) == []
