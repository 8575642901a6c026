"""A suite says what is run, in which order, and what is wrong with it."""

from __future__ import annotations

import dataclasses
import math
import shutil
import tomllib
from pathlib import Path

import pytest
import torch

from gradwire.errors import ConfigError
from gradwire_lab.experiments import models
from gradwire_lab.experiments.job import Job
from gradwire_lab.experiments.recommended import labels
from gradwire_lab.experiments.records import Record, read
from gradwire_lab.experiments.run_snapshots import parameters_in
from gradwire_lab.experiments.start import digest_of_start
from gradwire_lab.experiments.suite import coverage, load
from gradwire_lab.experiments.sweep import described
from gradwire_lab.experiments.tasks import find_task
from gradwire_lab.report import Results, markdown
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

SUITES = sorted((ROOT / "benchmarks").glob("*.toml"))
RESULTS = ROOT / "benchmarks" / "results"


def written(folder: Path, text: str) -> Path:
    path = folder / "suite.toml"
    path.write_text(text)
    return path


def test_the_order_is_that_in_which_a_part_says_most(tmp_path: Path) -> None:
    runs = [job.settings for job in load(written(tmp_path, SUITE))]
    order = [(run.seed, run.workers, run.task, run.method) for run in runs]
    one_seed = [
        (2, "classification", "none"),
        (2, "recommendation", "none"),
        (4, "classification", "none"),
        (4, "recommendation", "none"),
        (2, "classification", "topk:ratio=0.05"),
        (2, "classification", "dgc"),
        (2, "recommendation", "qsgd"),
        (4, "classification", "topk:ratio=0.05"),
        (4, "classification", "dgc"),
        (4, "recommendation", "qsgd"),
    ]
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


def test_an_optimizer_and_a_hook_of_torch_are_part_of_a_run(tmp_path: Path) -> None:
    text = """
tasks = ["gpt"]
methods = ["topk", "topk, steps", "torch_powersgd:rank=2"]
[method."topk, steps"]
method = "topk"
optimizer = "compressed_step:every=4"
"""
    runs = {run.method: run for run in (job.settings for job in load(written(tmp_path, text)))}
    steps, hook = runs["topk, steps"], runs["torch_powersgd:rank=2"]
    assert (steps.optimizer, steps.hook, steps.compressor) == (
        {"name": "compressed_step", "every": 4},
        None,
        runs["topk"].compressor,
    )
    assert (hook.compressor, hook.hook, hook.options) == (None, {"name": "powersgd", "rank": 2}, {})
    assert len({run.id for run in runs.values()}) == 4
    methods = {job.settings.method: job.method() for job in load(written(tmp_path, text))}
    assert methods["topk, steps"].optimizer == steps.optimizer
    assert methods["torch_powersgd:rank=2"].hook == hook.hook


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
        ("rates = [0]", r"rates must be a list of finite numbers above 0, got \[0\]"),
        ("[method.topk]\nrates = 0.1", "method.topk.rates must be a list of finite numbers above 0, got 0.1"),
        ("seeds = 0", r"seeds must be how many, or a list of different integers in \[0, 2\^63\), got 0"),
        ("seeds = [9223372036854775808]", r"seeds must be .*, got \[9223372036854775808\]"),
        ("seeds = true", "seeds must be how many"),
        ("seeds = [0, 1, 0]", r"seeds must be .* different integers in .*, got \[0, 1, 0\]"),
        ('links = ["fast"]', "rate must be written as 100mbit"),
        ('baseline = "nothing"', "unknown compressor 'nothing'"),
        ('backend = "mpi"', "backend must be gloo or nccl, got 'mpi'"),
        ("[task.classification]\nepochs = 0", r"task\.classification\.epochs must be an integer >= 1, got 0"),
        ("[task.language]\nepochs = 1", r"task\.language must be of one of the tasks classification"),
        ("[task.classification]\nrecipe = { rate = 1 }", "recipe must be one of batch, lr"),
        ("[method.qsgd]\nloss_scale = 2", r"method\.qsgd must be of one of the methods: .*Known: none, "),
        ("seeds = []", r"seeds must be how many, or a list of different integers in \[0, 2\^63\), got \[\]"),
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
        ('[method.topk]\noptimizer = "compressed_stp"', "no optimizer 'compressed_stp' of gradwire: did you mean"),
        ('[method.topk]\noptimizer = "diloco:evry=4"', "'evry' is no parameter of diloco: did you mean 'every'"),
        ('[method.topk]\noptimizer = "compressed_step:every=0"', "CompressedStep.every must be an integer >= 1, got 0"),
        (
            '[method.topk]\noptimizer = "compressed_step:moments=0"',
            "CompressedStep.moments must be 'apart' or",
        ),
        (
            '[method.topk]\noptimizer = "compressed_step:keep=true,late=true"',
            "CompressedStep.keep must be False with",
        ),
        ('[method.topk]\noptimizer = "diloco:momentum=1.5"', "DiLoCo.momentum must be in .0, 1., got 1.5"),
        ('[method.topk]\noptimizer = "onebit_adam:freeze_step=4"', "recipe.optimizer must be adam or adamw with one"),
        ('[method.topk]\noptimizer = "diloco"\noptions = { variance_correction = true }', "false with an optimizer"),
        ("[method.topk]\noptions = { variance_correction = 1 }", "variance_correction must be true or false"),
        ('[method.topk]\nmethod = "torch_powersg"', "no hook 'powersg' of torch: did you mean 'powersgd'"),
        ('[method.topk]\nmethod = "torch_ddp"\noptions = { min_numel = 3 }', "options must be none with a hook"),
        ('[method.topk]\nmethod = "torch_ddp"\noptimizer = "diloco"', "optimizer must be none with a hook of torch"),
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


RATES = """
tasks = ["classification"]
methods = ["topk"]
seeds = [5, 6, 7]
rates = [0.1, 0.2]
[method.topk]
rates = [0.05]
"""


def ended(job: Job, quality: float | None, status: str = "ok") -> Record:
    return Record(job.settings, "accuracy", higher_is_better=True, status=status, quality=quality)


def test_every_rate_with_the_first_seed_and_the_best_with_the_others(tmp_path: Path) -> None:
    suite = written(tmp_path, RATES)
    first = load(suite)
    assert [(job.settings.method, job.settings.recipe, job.settings.seed) for job in first] == [
        ("none", {"lr": 0.1}, 5),
        ("none", {"lr": 0.2}, 5),
        ("topk", {"lr": 0.05}, 5),
        ("topk", {"lr": 0.05}, 6),
        ("topk", {"lr": 0.05}, 7),
    ]
    assert [job.settings.tuned for job in first] == [True, True, False, False, False]
    assert len(load(suite, [ended(first[0], 0.5)])) == len(first)
    for found, best in (([0.5, 0.6], 0.2), ([0.6, 0.6], 0.1), ([math.nan, 0.1], 0.2)):
        made = [ended(job, quality) for job, quality in zip(first, found, strict=False)]
        others = {job.settings.recipe["lr"] for job in load(suite, made) if job.settings.seed in (6, 7)}
        assert others == {best, 0.05}
    failed = [ended(first[0], 0.5), ended(first[1], None, "failed")]
    assert len(load(suite, failed)) == len(first) + 2
    assert len(load(suite, [ended(job, None, "failed") for job in first[:2]])) == len(first)


def test_the_sweep_of_the_transformer_tunes_all_methods_alike() -> None:
    runs = [job.settings for job in load(ROOT / "benchmarks" / "gpt.toml")]
    rates: dict[str, set[object]] = {}
    for run in runs:
        rates.setdefault(run.method, set()).add(run.recipe["lr"])
    assert len(rates) == 31
    assert {frozenset(each) for each in rates.values()} == {frozenset({5e-4, 1e-3, 2e-3})}
    assert {(run.task, run.workers, run.epochs, run.seed) for run in runs} == {("gpt", 2, 5, 0)}


def test_the_runs_of_a_task_may_begin_with_what_was_saved(tmp_path: Path) -> None:
    torch.save({"params": dict(models.build("resnet20", small=True).named_parameters())}, tmp_path / "common.pt")
    text = 'tasks = ["classification"]\nmethods = ["topk"]\n[task.classification]\nstart = '
    jobs, others = (load(written(tmp_path, f"{text}{start}")) for start in ("'common.pt'\nepochs = 2", "'common.pt'"))
    assert {job.start for job in jobs} == {tmp_path / "common.pt"}
    assert {job.settings.start for job in [*jobs, *others]} == {digest_of_start(parameters_in(tmp_path))}
    with pytest.raises(ConfigError, match=r"suite\.toml: start must be a folder of gradwire train --checkpoint"):
        load(written(tmp_path, f"{text}'nowhere'"))


@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.stem)
def test_the_suites_of_the_project_can_be_run(suite: Path, tmp_path: Path) -> None:
    told = tomllib.loads(suite.read_text())
    starts = [(name, table["start"]) for name, table in told.get("task", {}).items() if "start" in table]
    if not starts:
        assert load(suite)
        return
    copy = Path(shutil.copy(suite, tmp_path))
    with pytest.raises(ConfigError, match="start must be a folder of gradwire train --checkpoint"):
        load(copy)
    for name, start in starts:
        (tmp_path / start).mkdir()
        model = find_task(name)().model()
        torch.save({"params": dict(model.named_parameters())}, tmp_path / start / "common.pt")
    jobs = load(copy)
    assert {job.settings.start is not None for job in jobs if job.settings.task in dict(starts)} == {True}
    # What they began with is gone, and they can be counted.
    assert coverage(suite, [ended(job, 0.5) for job in jobs]).made == len(jobs)


def published(suite: Path) -> list[Record]:
    place = RESULTS / f"{suite.stem}.jsonl"
    return list(read(place)) if place.exists() else []


@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.stem)
def test_what_is_published_of_a_suite_is_part_of_it(suite: Path) -> None:
    covered = coverage(suite, published(suite))
    # Beside all of its runs the survey's file has rows of earlier settings, under a name of their own.
    assert covered.made == covered.planned or [described(settings) for settings in covered.strange] == []


def test_the_documentation_says_how_many_runs_of_each_suite_are_published() -> None:
    covered = [coverage(suite, published(suite)) for suite in SUITES]
    page = (ROOT / "docs" / "train.md").read_text()
    told = page.partition("<!-- suites -->\n")[2].partition("<!-- end of suites -->")[0]
    # `gradwire report benchmarks/results/*.jsonl --suite ... --markdown docs/train.md` writes it.
    assert told == markdown(Results(coverages=covered))["suites"]


def test_all_that_is_planned_can_be_there_and_each_run_counts_once(tmp_path: Path) -> None:
    text = """
    tasks = ["classification"]
    methods = ["topk", "dgc", "dgc"]
    rates = [0.1, 0.2]
    seeds = 3
    [method.dgc]
    rates = [0.05]
    """
    suite = written(tmp_path, text)
    # Two methods, and the baseline, at two rates on seed 0 and at the best one on seeds 1 and 2; one at one rate.
    assert str(coverage(suite, [])) == "0 of 11 runs of suite.toml"
    made: list[Record] = []
    for count in (7, 11):
        made = [ended(job, 0.5) for job in load(suite, made)]
        assert str(coverage(suite, [*made, *made])) == f"{count} of 11 runs of suite.toml"
    assert coverage(suite, made).strange == []
    # A later seed at a rate that another one has overtaken counts as this seed's run, and not twice.
    topk = [job for job in load(suite, made) if job.settings.method == "topk"]
    overtaken = [replaced(job, lr=0.2) for job in topk if job.settings.seed == 1]
    assert coverage(suite, [*made, *(ended(job, 0.1) for job in overtaken)]).made == 11
    assert coverage(suite, [ended(job, 0.1) for job in overtaken]).made == 1
    # A failed run is none until it ended well.
    broken = [ended(job, None, "failed") for job in topk[:1]]
    assert str(coverage(suite, broken)) == "0 of 11 runs of suite.toml, 1 failed"
    assert str(coverage(suite, [*broken, ended(topk[0], 0.5)])) == "1 of 11 runs of suite.toml"
    other = [ended(replaced(topk[0], lr=0.7), 0.5)]
    assert [settings.recipe["lr"] for settings in coverage(suite, other).strange] == [0.7]


def test_of_a_method_that_diverged_at_all_rates_no_other_seeds_are_planned(tmp_path: Path) -> None:
    text = """
    tasks = ["classification"]
    methods = ["topk", "dgc"]
    rates = [0.1, 0.2]
    seeds = 3
    [method.dgc]
    rates = [0.05]
    """
    suite = written(tmp_path, text)
    # What diverged at its only rate has that rate's other seeds.
    lost = {"topk", "dgc"}

    def runs(status: str = "ok") -> list[Record]:
        made: list[Record] = []
        for _ in range(2):
            for job in load(suite, made):
                diverged = job.settings.method in lost
                last = status if job.settings.recipe["lr"] == 0.2 and job.settings.method == "topk" else "ok"
                made.append(ended(job, math.nan if diverged else 0.5, last))
        return made

    assert str(coverage(suite, runs())) == "9 of 9 runs of suite.toml"
    # A run that failed can be repeated, and may end well.
    assert str(coverage(suite, runs("failed"))) == "8 of 11 runs of suite.toml, 1 failed"
    # One of two rates has not ended yet.
    topk = [job for job in load(suite) if job.settings.method == "topk"]
    assert str(coverage(suite, [ended(topk[0], math.nan)])) == "1 of 11 runs of suite.toml"
    # A later seed that is there counts, and no more are planned than are.
    later = dataclasses.replace(topk[0], settings=dataclasses.replace(topk[0].settings, seed=1))
    found = coverage(suite, [*runs(), ended(later, 0.5)])
    assert (str(found), found.strange) == ("10 of 10 runs of suite.toml", [])


def replaced(job: Job, lr: float) -> Job:
    """The same run at another rate."""
    settings = dataclasses.replace(job.settings, recipe={**job.settings.recipe, "lr": lr})
    return dataclasses.replace(job, settings=settings)


def test_runs_with_another_start_do_not_change_what_is_counted(tmp_path: Path) -> None:
    torch.save({"params": dict(models.build("resnet20", small=True).named_parameters())}, tmp_path / "common.pt")
    text = 'tasks = ["classification"]\nmethods = ["topk"]\n'
    suite, plain = tmp_path / "suite.toml", tmp_path / "plain.toml"
    plain.write_text(text)
    suite.write_text(f"{text}[task.classification]\nstart = 'common.pt'\n")
    made, others = ([ended(job, 0.5) for job in load(path)] for path in (suite, plain))
    strange = [
        dataclasses.replace(run, settings=dataclasses.replace(run.settings, method=method, start="0" * 64))
        for run, method in zip(made, ("qsgd", "topk"), strict=True)
    ]
    for more in (others, strange):
        for runs in ([*made, *more], [*more, *made]):
            assert coverage(suite, runs).made == 2
            assert [*coverage(suite, runs).strange] == [run.settings for run in more]
    assert coverage(plain, [*others, *made]).made == 2
