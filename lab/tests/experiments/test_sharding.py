"""Runs under FSDP2: as runs under DDP where nothing is compressed, and smaller where gradients and weights are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from gradwire.errors import ConfigError
from gradwire_lab.experiments.job import Job, begun, settings_of
from gradwire_lab.experiments.launch import launch
from gradwire_lab.experiments.loop import Loop
from gradwire_lab.experiments.method_text import method_of
from gradwire_lab.experiments.process_figures import digest
from gradwire_lab.experiments.records import RunSettings
from gradwire_lab.experiments.run_snapshots import RunSnapshots, parameters_in
from gradwire_lab.experiments.sharding import blocks
from gradwire_lab.experiments.suite import load
from gradwire_lab.experiments.tasks.classification import Classification
from gradwire_lab.experiments.tasks.gpt import GPT
from gradwire_lab.experiments.train import Run, train
from gradwire_lab.experiments.training_method import Method
from lab.tests.experiments.resume_jobs import brief
from tests.once import once

SHARDED = {
    "none": {},
    "weights": {"weights": "blockwise8"},
    "both": {"weights": "blockwise8", "method": "blockwise8"},
    "scaled": {"loss_scale": 64.0},
}


def method_by(method: str = "none", **changes: Any) -> Method:
    return dataclasses.replace(method_of(method, "gpt"), **{"parallel": "fsdp2", **changes})


def runs() -> dict[str, Run]:
    """Two epochs of six steps, each of three micro-batches a worker.

    Those that are compared compute in fp32: where a CPU multiplies in bf16 by itself, the last bit of a norm ends up as
    a hundredth of a percent of the loss.
    """
    methods = {"whole": method_of("none")} | {name: method_by(**how) for name, how in SHARDED.items()}
    return {
        name: train(brief("gpt", 6).adjusted({"autocast": method.weights is not None}), method, 2, seed=1)
        for name, method in methods.items()
    }


@once
def told() -> list[dict[str, Run]]:
    return launch(2, runs)


def test_an_uncompressed_run_in_shards_is_the_run_under_ddp() -> None:
    """Between two workers sums have one order; norms of all gradients, for clipping, have another."""
    for found in told():
        whole, shards = found["whole"], found["none"]
        assert shards.loss == pytest.approx(whole.loss, rel=1e-6)
        assert [point.quality for point in shards.history] == pytest.approx(
            [point.quality for point in whole.history], rel=1e-6
        )
        assert shards.steps == whole.steps == 12


@pytest.mark.parametrize("name", SHARDED)
def test_workers_end_with_one_model_that_has_learned(name: str) -> None:
    one, other = (found[name] for found in told())
    assert one.digest == other.digest
    # In so few steps the loss of other text may rise, and which text this is depends on the version of Python.
    assert one.history[-1].loss < one.history[0].loss < 4.6
    assert one.quality < 4.6
    assert abs(one.quality - told()[0]["none"].quality) < 0.1


def test_bytes_are_those_of_gradients_and_weights() -> None:
    """Weights are gathered for the forward and for the backward pass of each micro-batch, gradients reduced once."""
    for found in told():
        none, weights, both = (found[name] for name in ("none", "weights", "both"))
        assert none.bytes_per_step == none.dense_bytes_per_step == weights.dense_bytes_per_step
        assert none.bytes_per_step > 6 * found["whole"].bytes_per_step / 2
        reduced = found["whole"].bytes_per_step
        gathered = none.bytes_per_step - reduced
        assert weights.bytes_per_step - reduced < 0.3 * gathered
        assert both.bytes_per_step < 0.27 * none.bytes_per_step


def test_a_sum_of_the_loss_that_is_scaled_is_scaled_back() -> None:
    for found in told():
        assert found["scaled"].quality == pytest.approx(found["none"].quality, rel=1e-6)


def test_the_blocks_of_a_transformer_are_sharded_each_by_itself() -> None:
    assert len(list(blocks(GPT("nanogpt").model("meta")))) == 6
    assert not list(blocks(nn.Linear(2, 2)))


def settings(method: Method) -> RunSettings:
    return settings_of(Classification(), method, workers=2)


def test_shards_are_part_of_the_settings_and_whole_models_keep_their_ids() -> None:
    plain, shards = settings(method_of("none")), settings(method_by())
    assert (plain.parallel, shards.parallel, shards.weights) == (None, "fsdp2", None)
    before = dataclasses.asdict(plain)
    assert plain.id == "38488fec77555ee1"
    assert len({plain.id, shards.id, settings(method_by(weights="fp8")).id}) == 3
    assert before["weights"] is None
    again = Job(settings(method_by(weights="fp8"))).method()
    assert (again.parallel, again.weights) == ("fsdp2", "fp8")


REFUSED = {
    r"^parallel must be ddp or fsdp2, got 'fsdp'$": {"parallel": "fsdp"},
    r"^weights must be None without parallel fsdp2, got 'bf16'$": {"parallel": "ddp", "weights": "bf16"},
    r"^parallel must be ddp with a hook of torch or with an optimizer, got 'fsdp2'$": {"hook": {"name": "ddp"}},
    r"unknown compressor 'blockwise9'": {"weights": "blockwise9"},
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_is_refused_before_anything_starts(said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings(method_by(**REFUSED[said]))


def saved_in_shards(folder: Path) -> tuple[str, float]:
    """The digest of a run, and the largest difference between its end and the parameters that its checkpoint has."""
    with Loop(brief("gpt", 6), method_by(weights="blockwise8"), 1, 1) as loop:
        loop.run_epoch(lambda *_: None, lambda _: None)
        RunSnapshots(folder, {}).save(loop)
        whole = dict(loop.gathered().named_parameters())
        saved = parameters_in(folder)
        assert sorted(saved) == sorted(whole)
        return digest(loop.gathered()), max(float((saved[name] - whole[name]).abs().max()) for name in whole)


def test_a_checkpoint_of_shards_has_the_whole_model_with_which_others_can_begin(tmp_path: Path) -> None:
    digests, differences = zip(*launch(2, saved_in_shards, tmp_path), strict=True)
    assert len(set(digests)) == 1
    assert differences == (0.0, 0.0)
    assert begun(brief("gpt"), tmp_path) is not None


def test_a_suite_trains_in_shards(tmp_path: Path) -> None:
    path = tmp_path / "suite.toml"
    path.write_text("""
tasks = ["gpt"]
methods = ["bf16", "8 bits", "whole"]
parallel = "fsdp2"
[task.gpt]
model = "nanogpt"
[method."8 bits"]
method = "blockwise8"
weights = "blockwise8"
[method.whole]
method = "none"
parallel = "ddp"
""")
    found = {job.settings.method: job.settings for job in load(path)}
    assert {name: (each.parallel, each.weights) for name, each in found.items()} == {
        "none": ("fsdp2", None),
        "bf16": ("fsdp2", None),
        "8 bits": ("fsdp2", "blockwise8"),
        "whole": (None, None),
    }
    assert {each.model for each in found.values()} == {"nanogpt_small"}
