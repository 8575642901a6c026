"""A suite says what is run, in which order, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.bench.recommended import labels
from gradwire.bench.records import counted, read
from gradwire.bench.suite import load
from gradwire.bench.sweep import described
from gradwire.errors import ConfigError
from tests.house.source import ROOT

SUITE = """
tasks = ["classification", "recommendation"]
methods = ["topk:ratio=0.05", "dgc"]
workers = [2, 4]
seeds = 2
[task.recommendation]
epochs = 3
methods = ["qsgd"]
recipe = { lr = 0.02 }
[method.dgc]
options = { strategy = "two_phase" }
recipe = { lr = 0.05 }
loss_scale = 2
"""

SHIPPED = pytest.mark.parametrize("suite", sorted((ROOT / "benchmarks").glob("*.toml")), ids=lambda path: path.stem)


def written(folder: Path, text: str) -> Path:
    path = folder / "suite.toml"
    path.write_text(text)
    return path


def test_the_order_is_that_in_which_a_part_says_most(tmp_path: Path) -> None:
    runs = [job.settings for job in load(written(tmp_path, SUITE))]
    order = [(run.seed, run.workers, run.task, run.method) for run in runs]
    one_seed = [
        (2, "classification", "none"), (2, "recommendation", "none"),
        (4, "classification", "none"), (4, "recommendation", "none"),
        (2, "classification", "topk:ratio=0.05"), (2, "classification", "dgc"), (2, "recommendation", "qsgd"),
        (4, "classification", "topk:ratio=0.05"), (4, "classification", "dgc"), (4, "recommendation", "qsgd"),
    ]  # fmt: skip
    assert order == [(seed, *rest) for seed in (0, 1) for rest in one_seed]
    assert len({run.id for run in runs}) == len(runs)


def test_tables_of_a_task_and_of_a_method_change_their_runs_alone(tmp_path: Path) -> None:
    runs = {(run.task, run.method): run for run in (job.settings for job in load(written(tmp_path, SUITE)))}
    dgc = runs["classification", "dgc"]
    assert (dgc.recipe, dgc.loss_scale, dgc.epochs) == ({"momentum": 0.0, "lr": 0.05}, 2.0, 10)
    assert dgc.options == {"min_numel": 256, "strategy": "two_phase"}
    qsgd = runs["recommendation", "qsgd"]
    assert (qsgd.recipe, qsgd.epochs, qsgd.data) == ({"lr": 0.02}, 3, "generated choices")
    assert runs["classification", "none"].recipe == {}


def test_one_method_twice_is_known_by_names_of_its_own(tmp_path: Path) -> None:
    text = """
tasks = ["classification"]
methods = ["topk:ratio=0.05", "topk, nothing kept"]
[method."topk, nothing kept"]
method = "topk:ratio=0.05"
options = { memory = "none", force = true }
"""
    runs = {run.method: run for run in (job.settings for job in load(written(tmp_path, text)))}
    kept, nothing = runs["topk:ratio=0.05"], runs["topk, nothing kept"]
    assert kept.compressor == nothing.compressor == {"name": "topk", "ratio": 0.05} | nothing.compressor
    assert (kept.options, nothing.options) == ({"min_numel": 256}, {"min_numel": 256, "memory": "none", "force": True})
    assert kept.id != nothing.id


def test_all_are_all_as_they_are_recommended(tmp_path: Path) -> None:
    text = 'tasks = ["classification"]\nmethods = ["all"]\n'
    assert {job.settings.method for job in load(written(tmp_path, text))} == set(labels())
    plain = load(written(tmp_path, text + "recommended = false\n"))
    assert all(job.settings.loss_scale == 1.0 and not job.settings.options for job in plain)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("worker = [2]", "worker is no key of a suite: did you mean 'workers'"),
        ('workers = ["two"]', r"workers must be a list of integers in \[1, 64\], got \['two'\]"),
        ("seeds = 0", r"seeds must be how many, or a list of integers in \[0, 2\^63\), got 0"),
        ("seeds = [9223372036854775808]", r"seeds must be .*, got \[9223372036854775808\]"),
        ("seeds = true", "seeds must be how many"),
        ('links = ["fast"]', "rate must be written as 100mbit"),
        ('baseline = "nothing"', "unknown compressor 'nothing'"),
        ('backend = "mpi"', "backend must be gloo or nccl, got 'mpi'"),
        ("[task.classification]\nepochs = 0", r"task\.classification\.epochs must be an integer >= 1, got 0"),
        ("[task.language]\nepochs = 1", r"task\.language must be of one of the tasks classification"),
        ("[task.classification]\nrecipe = { rate = 1 }", "recipe must be one of batch, lr"),
        ("[method.qsgd]\nloss_scale = 2", r"method\.qsgd must be of one of the methods: .*Known: none, "),
        ("seeds = []", r"seeds must be how many, or a list of integers in \[0, 2\^63\), got \[\]"),
        ("[method.topk]\nloss_scale = inf", "loss_scale must be finite and above 0, got inf"),
        ("[method.topk]\nloss_scale = -1", r"method\.topk\.loss_scale must be finite and above 0, got -1"),
        ("[method]\ntopk = 3", "method.topk must be a table, got 3"),
        (
            "[method.topk]\noptions = { strategi = 'two_phase' }",
            "option 'strategi' is none of compress_ddp: did you mean 'str",
        ),
        ("[method.topk]\noptions = { strategy = 'two' }", "unknown strategy 'two'"),
        ("[method.topk]\noptions = { min_numel = -1 }", "min_numel must be"),
        (
            'workers = [1, 2]\nlinks = ["none", "100mbit"]',
            "workers must be at least 2 with links such as '100mbit', got 1",
        ),
        ('links = ["none", "400gbit"]', "Link.rate must be at most 100gbit in a lab, got '400gbit'"),
        ('workers = [1]\nlinks = ["none+1ms"]', "workers must be at least 2 with links"),
        (
            "[task.classification]\nrecipe = { lr = 2020-01-01 }",
            r"task\.classification\.recipe must be a table of texts, finite numbers, .*, got {'lr': datetime\.date",
        ),
        ("[method.topk]\nrecipe = { lr = inf }", r"method\.topk\.recipe must be a table of .*, got {'lr': inf}"),
        (
            "[method.topk]\noptions = { overrides = { a = [nan] } }",
            r"method\.topk\.options must be a table of .*\[nan\]",
        ),
        ("[method.topk]\nmethod = 3", "method.topk.method must be a text, got 3"),
        ('[method.topk]\nmethod = "topp"', "unknown compressor 'topp'"),
        ("= 3", "cannot be read: Invalid"),
    ],
)
def test_a_mistake_is_told_with_its_key_and_what_is_allowed(change: str, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, f'tasks = ["classification"]\nmethods = ["topk"]\n{change}\n')
    with pytest.raises(ConfigError, match=said) as error:
        load(path)
    assert "suite.toml" in str(error.value)


def test_what_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="methods must be a list of texts, got 'nothing'"):
        load(written(tmp_path, 'tasks = ["classification"]'))
    with pytest.raises(ConfigError, match=r"nowhere\.toml cannot be read"):
        load(tmp_path / "nowhere.toml")


@SHIPPED
def test_the_suites_of_the_project_can_be_run(suite: Path) -> None:
    assert load(suite)


@SHIPPED
def test_the_published_results_are_those_of_the_settings_as_they_are(suite: Path) -> None:
    made = counted(read(ROOT / "benchmarks" / "results" / f"{suite.stem}.jsonl"))
    well = {name for name, record in made.items() if record.status == "ok"}
    assert [described(job.settings) for job in load(suite) if job.settings.id not in well] == []
