"""The check of convergence: what a row says, and what really trained."""

from __future__ import annotations

import dataclasses
import json

import pytest

from gradwire import registry
from gradwire.compressors.casts.bf16 import BF16
from gradwire.engine.policy import Policy
from gradwire.errors import GroupError
from gradwire_lab.experiments import convergence
from gradwire_lab.experiments.convergence import ConvergenceRow, kept_in, markdown, rows
from gradwire_lab.experiments.method_text import parse_method
from gradwire_lab.experiments.recommended import (
    BY_TASK,
    MIN_NUMEL,
    RECOMMENDED,
    labels,
    min_numel_of,
    recommended,
    setup_of,
)
from gradwire_lab.experiments.tasks import find_task, task_names
from gradwire_lab.experiments.tasks.segmentation import Segmentation
from gradwire_lab.experiments.training_method import Method

GOOD = ConvergenceRow("topk", {}, 2, 10, (0.97, 0.99), 0.99, 1234.5, 33.0, 75_008, identical=True, reason="", misses="")


def test_within_two_points_of_the_mean_is_reached() -> None:
    assert GOOD.accuracy == pytest.approx(0.98)
    assert GOOD.points == pytest.approx(-1.0)
    assert (GOOD.reached, GOOD.failed, GOOD.verdict) == (True, False, "reached")
    edge = dataclasses.replace(GOOD, accuracies=(0.97, 0.97))
    assert edge.reached
    assert not dataclasses.replace(edge, accuracies=(0.97, 0.969)).reached


@pytest.mark.parametrize(
    ("change", "failed", "verdict"),
    [
        ({"accuracies": (0.5,)}, True, "FAILED"),
        ({"accuracies": (0.5,), "misses": "too coarse"}, False, "known to miss: too coarse"),
        ({"misses": "too coarse"}, False, "reached"),
        ({"identical": False}, True, "FAILED: the workers' parameters differ"),
        ({"identical": False, "misses": "too coarse"}, True, "FAILED: the workers' parameters differ"),
        ({"accuracies": (), "error": "worker 1 died", "misses": "too coarse"}, True, "FAILED: worker 1 died"),
        ({"ratio": 1.0}, True, "FAILED: nothing was compressed"),
        ({"ratio": 1.0, "method": "none"}, False, "reached"),
    ],
)
def test_the_verdict(change: dict[str, object], failed: bool, verdict: str) -> None:
    row = dataclasses.replace(GOOD, **change)
    assert (row.failed, row.verdict) == (failed, verdict)
    assert json.loads(json.dumps(row.as_dict()))["failed"] is failed


def test_the_table_of_the_docs() -> None:
    four = dataclasses.replace(GOOD, workers=4, accuracies=(0.5,), reason="because")
    dense = [dataclasses.replace(GOOD, method="none", workers=workers, accuracies=(0.99,)) for workers in (2, 4)]
    lines = markdown([dense[0], dataclasses.replace(GOOD, reason="because"), dense[1], four]).splitlines()
    assert lines[:2] == ["10 epochs, 2 seeds:", ""]
    assert lines[2] == "| method | 2 workers | bytes a step | 4 workers | bytes a step | verdict | settings |"
    assert lines[4] == "| [`none`](casts.md#none) | 99.0% | 1,234 | 99.0% | 1,234 | reached | defaults |"
    shown = "98.0% (-1.0) | 1,234 | 50.0% (-49.0) | 1,234 | reached; FAILED | because |"
    assert lines[5] == f"| [`topk`](sparse.md#topk) | {shown}"
    assert len({line.count("|") for line in lines[2:]}) == 1


def test_a_residual_of_another_width_is_a_method_of_its_own() -> None:
    wide, narrow = kept_in(recommended("twobit"), ["float32", "bfloat16"])
    assert wide == recommended("twobit")
    assert narrow.options == {**wide.options, "residual_dtype": "bfloat16"}
    assert kept_in(recommended("qsgd"), ["float32", "bfloat16"]) == [recommended("qsgd")]


def test_every_registered_method_has_settings_that_work() -> None:
    assert set(registry.names("compressors")) <= set(labels())
    for name in labels():
        method = recommended(name)
        assert (method.label, method.compressor.name) == (name, name.partition(":")[0])
        assert method.options["min_numel"] == setup_of(name).options.get("min_numel", MIN_NUMEL)
    for name, setup in RECOMMENDED.items():
        assert setup.reason, name
    assert recommended("dgc").recipe == {"momentum": 0.0}


def test_the_narrow_layers_of_segmentation_travel_uncompressed() -> None:
    """All seven small convolutions, and nothing else that is compressed elsewhere; docs/results.md has the figures."""
    task = Segmentation()
    limit = recommended("twobit:threshold=auto", task.name).options["min_numel"]
    assert limit == min_numel_of(task.name) == Policy().min_numel
    numels = [param.numel() for param in task.model().parameters() if param.numel() >= MIN_NUMEL]
    narrow = [numel for numel in numels if numel < limit]
    assert sorted(narrow) == [256, 288, 576, 576, 576, 576, 864]
    assert min(numel for numel in numels if numel >= limit) == 1024
    for other in set(task_names()) - {task.name}:
        assert recommended("twobit", other).options["min_numel"] == MIN_NUMEL


@pytest.mark.parametrize("task", task_names())
def test_every_task_has_settings_that_its_recipe_and_its_methods_know(task: str) -> None:
    recipe = find_task(task)().recipe
    for name in labels():
        dataclasses.replace(recipe, **recommended(name, task).recipe)
    for name, setup in BY_TASK[task].items():
        assert setup.reason, name
        assert name.partition(":")[0] in registry.names("compressors")
        assert (setup.params, setup.recipe, setup.loss_scale) != ({}, {}, 1.0), name


def test_parameters_behind_a_name_may_have_settings_of_their_own() -> None:
    """A label that says what its settings are, and the settings of the name for one that nobody recommends."""
    for label in labels():
        written = parse_method(label)
        assert ":" not in label or recommended(label).compressor == written
    assert setup_of("twobit:threshold=1e6") == RECOMMENDED["twobit"] != setup_of("twobit:threshold=auto")
    assert "[`twobit:threshold=auto`](ternary.md#twobit)" in markdown(
        [dataclasses.replace(GOOD, method="twobit:threshold=auto")]
    )


@pytest.mark.timeout(600)
def test_methods_train_beside_the_baseline_and_an_error_is_a_row() -> None:
    wrong = Method("wrong", BF16(), {"min_numel": -1})
    dense, same, failed = rows([recommended("none"), recommended("bf16"), wrong], [2], seeds=2, epochs=1)
    assert (dense.method, same.method, failed.method) == ("none", "bf16", "wrong")
    assert len(dense.accuracies) == len(same.accuracies) == 2
    assert dense.accuracies[0] != dense.accuracies[1]
    assert min(dense.accuracies + same.accuracies) > 0.3
    assert dense.baseline == same.baseline == dense.accuracy
    assert same.identical
    assert same.ratio == pytest.approx(dense.bytes_per_step / same.bytes_per_step)
    assert same.ratio > 1.9
    assert "min_numel" in failed.error
    assert failed.failed


def test_without_an_uncompressed_run_nothing_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def died(world: int, work: object, method: Method, *others: object) -> None:
        tried.append(method.label)
        raise GroupError("worker 1 died")

    monkeypatch.setattr(convergence, "launch", died)
    dense, other = rows([recommended("bf16")], [2], seeds=1, epochs=1)
    assert (dense.error, other.error) == (
        "worker 1 died",
        "there is no uncompressed run to compare with: worker 1 died",
    )
    assert [(row.reached, row.failed, row.comparable) for row in (dense, other)] == [(False, True, False)] * 2
    assert tried == ["none"]
    assert GOOD.comparable


def test_settings_are_of_tasks_that_there_are() -> None:
    assert set(BY_TASK) <= set(task_names())
