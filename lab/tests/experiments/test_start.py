"""A run may begin with the parameters that another one saved, and with nothing else of it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.compressors.sparse.topk import TopK
from gradwire.errors import ConfigError
from gradwire_lab.experiments.job import Job, begun, settings_of
from gradwire_lab.experiments.loop import Loop
from gradwire_lab.experiments.process_figures import digest
from gradwire_lab.experiments.recommended import recommended
from gradwire_lab.experiments.run_snapshots import RunSnapshots, parameters_in
from gradwire_lab.experiments.start import begin_with, digest_of_start
from gradwire_lab.experiments.tasks import find_task
from gradwire_lab.experiments.tasks.base import Task
from gradwire_lab.experiments.tasks.classification import Classification
from gradwire_lab.experiments.tasks.gpt import GPT
from gradwire_lab.experiments.train import train
from gradwire_lab.experiments.training_method import Method
from lab.tests.experiments.narrow import narrowed

METHOD = Method("topk", TopK(ratio=0.05), {"min_numel": 256})


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def brief(name: str) -> Task:
    """A transformer's task with few steps, and few characters to measure."""
    task = narrowed(find_task(name)()).adjusted({"steps": 12, "micro": 8})
    task.data = dataclasses.replace(task.data, test=task.data.test[:130])
    return task


def test_fine_tuning_begins_where_training_ended(group: None, tmp_path: Path) -> None:
    trained = train(brief("gpt"), METHOD, 2, snapshots=RunSnapshots(tmp_path, {}))
    start = parameters_in(tmp_path)
    with Loop(brief("gpt_tune"), METHOD, 1, seed=7, start=start) as loop:
        assert digest(loop.module) == trained.digest
        assert not loop.optimizer.state
        assert not any(each.any() for each in tensors(loop.synchronisation.own()) if each.is_floating_point())
    losses: list[list[float]] = [[], []]
    for said, begin in zip(losses, (None, start), strict=True):
        train(brief("gpt_tune"), METHOD, 1, watch=lambda _step, loss, said=said: said.append(loss), start=begin)
    assert losses[1][0] < losses[0][0] - 1


@pytest.mark.parametrize("name", ["classification", "segmentation", "recommendation", "gpt_tune", "language"])
def test_seeds_of_runs_with_one_beginning_see_the_examples_in_another_order(group: None, name: str) -> None:
    def order(seed: int, *, begins: bool) -> list[Tensor]:
        task = narrowed(find_task(name)())
        start = dict(task.model().named_parameters()) if begins else None
        with Loop(task, METHOD, 1, seed, start=start):
            return [each for pair in itertools.islice(task.shares(0, 0, 1), 2) for each in pair]

    without, *others = [order(5, begins=False), order(0, begins=True), order(1, begins=True), order(1, begins=True)]
    same, other, again = (all(map(torch.equal, without, each)) for each in others)
    assert (same, other, again) == (True, False, False)
    assert all(map(torch.equal, others[1], others[2]))


def tensors(saved: object) -> Iterator[Tensor]:
    if isinstance(saved, Tensor):
        yield saved
    elif isinstance(saved, dict | list | tuple):
        for each in saved.values() if isinstance(saved, dict) else saved:
            yield from tensors(each)


def test_a_checkpoint_is_named_by_its_run_its_folder_or_its_file(group: None, tmp_path: Path) -> None:
    task = Classification().adjusted({"steps": 4})
    train(task, METHOD, 2, snapshots=RunSnapshots(tmp_path, {}, every=2))
    newest, before = tmp_path / "step-00000008", tmp_path / "step-00000006"
    last, earlier = digest_of_start(parameters_in(tmp_path)), digest_of_start(parameters_in(before))
    assert last != earlier
    assert digest_of_start(parameters_in(newest)) == digest_of_start(parameters_in(newest / "common.pt")) == last
    settings = settings_of(task, recommended("none"), workers=1, start=begun(task, before))
    assert settings.start == earlier
    job = Job(settings, start=before)
    assert digest_of_start(job.parameters() or {}) == earlier
    with pytest.raises(ConfigError, match="start must be what it was when the run was set up, got"):
        dataclasses.replace(job, start=newest).parameters()
    assert Job(settings_of(task, recommended("none"), workers=1)).parameters() is None


def test_another_start_is_another_run() -> None:
    task = Classification()
    runs = [settings_of(task, recommended("none"), workers=1, start=start) for start in (None, "ab", "cd")]
    assert len({run.id for run in runs}) == 3


def saved(path: Path, what: object) -> Path:
    torch.save(what, path)
    return path


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    text, empty, run = tmp_path / "notes.txt", tmp_path / "empty", tmp_path / "run" / "step-00000003"
    text.write_text("notes of mine")
    empty.mkdir()
    run.mkdir(parents=True)
    saved(run / "common.pt", {"params": {"weight": torch.ones(3)}})
    (run / "SHA256SUMS").write_text(f"{'0' * 64}  common.pt\n")
    for path, said in (
        (tmp_path / "nowhere", "start must be a folder of gradwire train --checkpoint, .* is not there"),
        (empty, r"start must be a folder of .*empty is a folder without any"),
        (text, r"start must be a checkpoint that gradwire train saved, got .*notes\.txt: "),
        (saved(tmp_path / "a.pt", {"state": 3}), r"must be a checkpoint .*a\.pt: it holds no parameters"),
        (saved(tmp_path / "b.pt", {"params": {}}), r"must be a checkpoint .*b\.pt: it holds no parameters"),
        (saved(tmp_path / "c.pt", {"params": {"weight": 3.0}}), r"c\.pt: it holds no parameters"),
        (saved(tmp_path / "d.pt", torch.ones(3)), r"d\.pt: it holds no parameters"),
        (run.parent, r"common\.pt: ValueError: the SHA-256 of common\.pt must be 0000"),
    ):
        with pytest.raises(ConfigError, match=said):
            parameters_in(path)


def test_the_parameters_of_another_model_are_refused(tmp_path: Path) -> None:
    task = GPT()
    params = {name: param.detach() for name, param in task.model().named_parameters()}
    for changed, said in (
        ({"words.weight": torch.zeros(256, 256)}, r"words\.weight must be \(97, 256\), got \(256, 256\)"),
        ({"words.bias": torch.zeros(97)}, r"words\.bias must be missing, got \(97,\)"),
    ):
        other = saved(tmp_path / "other.pt", {"params": {**params, **changed}})
        with pytest.raises(ConfigError, match=rf"start must have the parameters of gpt_small: {said}"):
            begun(task, other)
    del params["norm.bias"]
    with pytest.raises(ConfigError, match=r"norm\.bias must be \(256,\), got missing"):
        begin_with(params, task.model("meta"), "gpt_small")
