"""A run knows its data, and says what became of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from gradwire.errors import ConfigError, GroupError
from gradwire_lab.experiments.data.base import Interactions
from gradwire_lab.experiments.job import Job, digest_of, failed, is_plain, settings_of
from gradwire_lab.experiments.recommended import recommended
from gradwire_lab.experiments.run_snapshots import steps_in
from gradwire_lab.experiments.suite import load
from gradwire_lab.experiments.tasks import find_task, task_names
from gradwire_lab.experiments.tasks.classification import Classification
from gradwire_lab.experiments.tasks.language import LanguageModelling

TEXT = " the cat sat on the mat \n a N <unk> cat \n"
SUITE = """
tasks = ["language"]
methods = ["none"]
[task.language]
data = "ptb"
"""


def ptb(folder: Path, train: str) -> Path:
    folder.mkdir(parents=True)
    for part, text in (("train", train), ("valid", TEXT), ("test", TEXT * 40)):
        (folder / f"ptb.{part}.txt").write_text(text)
    return folder


def test_a_run_with_another_text_is_another_run(tmp_path: Path) -> None:
    ids = []
    for name, train in (("one", TEXT * 200), ("two", TEXT * 199 + TEXT.upper()), ("three", TEXT * 200)):
        (tmp_path / name).mkdir()
        ptb(tmp_path / name / "ptb", train)
        suite = tmp_path / name / "suite.toml"
        suite.write_text(SUITE)
        (job,) = load(suite)
        assert job.settings.data_digest == job.task().data.digest
        assert failed(job, GroupError("no luck")).data_digest == job.settings.data_digest
        ids.append(job.settings.id)
    assert ids[0] == ids[2] != ids[1]


def test_embedded_data_is_in_the_record_and_not_in_the_settings() -> None:
    task = LanguageModelling()
    job = Job(settings_of(task, recommended("none", "language"), workers=2))
    assert job.settings.data_digest is None
    assert failed(job, GroupError("no luck")).data_digest == task.data.digest


@pytest.mark.parametrize("name", task_names())
def test_the_data_of_every_task_has_a_digest(name: str) -> None:
    made = [find_task(name)().data for _ in range(2)]
    one, two = map(digest_of, made)
    assert one == two
    assert len(one) == 64


def test_a_digest_is_that_of_the_numbers(tmp_path: Path) -> None:
    pairs = torch.tensor([[0, 1], [0, 0]])
    data = Interactions("choices", 2, 2, pairs, torch.tensor([0, 1]))
    assert digest_of(data) == digest_of(dataclasses.replace(data, train=pairs.clone()))
    assert digest_of(data) != digest_of(dataclasses.replace(data, train=pairs.T))
    image = tmp_path / "n00000001" / "a.jpg"
    image.parent.mkdir()
    seen = set()
    for content in (b"a", b"ab"):
        image.write_bytes(content)
        seen.add(digest_of((image,)))
    assert len(seen) == 2


def test_a_run_is_not_resumed_with_other_data(tmp_path: Path) -> None:
    method = recommended("none", "language")
    for name, train, said in (("one", TEXT * 200, None), ("two", TEXT * 199 + TEXT.upper(), "data_digest was")):
        folder = ptb(tmp_path / name, train)
        settings = settings_of(LanguageModelling(folder=folder), method, workers=2)
        snapshots = Job(settings, folder, tmp_path / "saved", resume=True).snapshots()
        assert snapshots is not None
        if said is None:
            snapshots.prepare()
            (tmp_path / "saved" / "step-00000010").mkdir()
            assert steps_in(tmp_path / "saved") == [10]
            snapshots.prepare()
        else:
            with pytest.raises(ConfigError, match=said):
                snapshots.prepare()


def test_an_error_that_is_none_of_ours_is_told_with_its_kind() -> None:
    job = Job(settings_of(LanguageModelling(), recommended("none", "language"), workers=2))
    assert failed(job, RuntimeError("the other side\nis gone")).error == "RuntimeError: the other side is gone"
    assert failed(job, GroupError("worker 1 died")).error == "worker 1 died"


def test_a_loss_scale_without_effect_is_refused() -> None:
    method = dataclasses.replace(recommended("onebit"), optimizer={"name": "compressed_step"})
    assert method.loss_scale == 64.0
    with pytest.raises(ConfigError, match=r"^loss_scale must be 1 with an optimizer that exchanges, got 64\.0$"):
        settings_of(Classification(), method, workers=2)


def test_settings_are_what_json_gives_back() -> None:
    method = recommended("none", "language")
    with pytest.raises(ConfigError, match=r"recipe\.lr must be texts, finite numbers, .*, got inf"):
        settings_of(LanguageModelling(), method, workers=2, recipe={"lr": float("inf")})
    assert is_plain({"drops": [0.5, 1], "clip": None, "linear": True})
    for value in (float("nan"), [float("inf")], {1: 2}, {"a": b"b"}):
        assert not is_plain(value)
