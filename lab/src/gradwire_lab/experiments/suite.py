"""Suites written in TOML: methods x tasks x workers x links x seeds.

    tasks = ["classification", "language"]       # files of gradwire_lab.experiments.tasks
    methods = ["all", "topk:ratio=0.001"]        # as on the command line; "all": every one, as it is recommended;
                                                 # "own.py:TopHalf": a class of a file, relative to the suite
    workers = [2, 4]
    links = ["none", "100mbit", "1gbit+1ms"]     # none: the loopback; others need root
    seeds = 3                                    # 0, 1 and 2; or a list
    baseline = "none"                            # runs before the others, asked for or not
    rates = [0.001, 0.002]                       # peak learning rates: each method at each of them on the first seed,
                                                 # and on the others at the best of them alone
    parallel = "ddp"                             # or "fsdp2", in shards
    recommended = true                           # false: each compressor's own defaults, whatever the task
    backend = "gloo"

    [task.language]                              # what differs on one task
    epochs = 2
    model = "lstm"
    data = "folder"                              # relative to the suite
    start = "folder"                             # a checkpoint whose parameters it begins with; relative, too
    methods = ["topk"]                           # in place of those above, as rates are
    options = { min_numel = 256 }                # for compress_ddp, as every method's; its own go on top
    recipe = { lr = 10.0 }

    [method."topk:ratio=0.001"]                  # what differs for one method
    options = { strategy = "two_phase" }
    recipe = { momentum = 0.0 }
    loss_scale = 1.0

    [method."topk, nothing kept"]                # one method twice: here under a name of its own
    method = "topk:ratio=0.001"
    options = { memory = "none", force = true }

    [method."topk, steps"]
    method = "topk"
    optimizer = "compressed_step:every=4"        # of gradwire.optim: it exchanges, in place of a hook

    [method."blockwise8, weights too"]
    method = "blockwise8"
    parallel = "fsdp2"
    weights = "blockwise8"                       # under FSDP2: what its all-gathers send

Invariants:
    * The order of the runs is the one in which a suite that is cut off shows most: the first seed of everything before
      the second, the baseline before the methods, and runs of the same workers and link together, because they share
      one group.
    * The best rate is known when all rates of a method have ended on the first seed; until then there are no runs of
      its other seeds. If all of them diverged there is no best rate, and there are no other seeds.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gradwire.errors import ConfigError, is_int, nearest, require
from gradwire.registry import named_of, registered
from gradwire_lab.experiments.job import BACKENDS, MOST_SEED, PLAIN, Job, begun, device_of, is_plain, settings_of
from gradwire_lab.experiments.method_text import method_of
from gradwire_lab.experiments.recommended import labels
from gradwire_lab.experiments.records import Record, RunSettings, counted
from gradwire_lab.experiments.tasks import find_task
from gradwire_lab.experiments.tasks.base import Task
from gradwire_lab.experiments.training_method import PARALLEL, Method
from gradwire_lab.netlab import Link

__all__ = ["Coverage", "all_diverged", "best_of", "coverage", "load"]

_MOST_WORKERS = 64
_EVERY = "all"

Table = Mapping[str, Any]
_Check = tuple[Callable[[Any], bool], str]


def _lists(inside: Callable[[Any], bool], what: str) -> _Check:
    return lambda value: isinstance(value, list) and bool(value) and all(map(inside, value)), f"a list of {what}"


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds)


_TEXTS = _lists(_is(str), "texts")
_TABLE: _Check = (_is(dict), "a table")
_TEXT: _Check = (_is(str), "a text")
_VALUES: _Check = (lambda value: isinstance(value, dict) and is_plain(value), f"a table of {PLAIN}")

_RATES = _lists(lambda value: _is(int, float)(value) and 0 < value < math.inf, "finite numbers above 0")

_SEEDS = _lists(lambda value: is_int(value, 0, MOST_SEED), "seeds")

_PARALLEL: _Check = (lambda value: value in PARALLEL, " or ".join(PARALLEL))

_SUITE: dict[str, _Check] = {
    "tasks": _TEXTS,
    "methods": _TEXTS,
    "links": _TEXTS,
    "baseline": _TEXT,
    "device": _TEXT,
    "workers": _lists(lambda value: is_int(value, 1, _MOST_WORKERS), f"integers in [1, {_MOST_WORKERS}]"),
    "seeds": (
        lambda value: is_int(value, 1) or (_SEEDS[0](value) and len({*value}) == len(value)),
        "how many, or a list of different integers in [0, 2^63)",
    ),
    "rates": _RATES,
    "recommended": (_is(bool), "true or false"),
    "parallel": _PARALLEL,
    "task": _TABLE,
    "method": _TABLE,
    "backend": (lambda value: value in BACKENDS, " or ".join(BACKENDS)),
}
_TASK: dict[str, _Check] = {
    "epochs": (lambda value: is_int(value, 1), "an integer >= 1"),
    "model": _TEXT,
    "data": _TEXT,
    "start": _TEXT,
    "methods": _TEXTS,
    "recipe": _VALUES,
    "rates": _RATES,
    "options": _VALUES,
}
_METHOD: dict[str, _Check] = {
    "method": _TEXT,
    "options": _VALUES,
    "recipe": _VALUES,
    "optimizer": _TEXT,
    "parallel": _PARALLEL,
    "weights": _TEXT,
    "rates": _RATES,
    "loss_scale": (lambda value: _is(int, float)(value) and 0 < value < math.inf, "finite and above 0"),
}


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The numbers of runs of a suite that are there.

    Args:
        name: name of the suite's file.
        made: number of runs that ended well, or diverged.
        failed: number of runs that only failed.
        planned: all that it asks for, those among them whose rate is not known yet; no other seeds of a method whose
            rates all diverged on the first one, unless they are there.
        strange: settings of results that are none of its runs.
    """

    name: str
    made: int
    failed: int
    planned: int
    strange: Sequence[RunSettings] = ()

    def __str__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.made} of {self.planned} runs of {self.name}{failed}"


def coverage(path: Path, made: Iterable[Record]) -> Coverage:
    """The numbers of runs of a suite that are there.

    A suite of several rates runs its later seeds at the rate that is best on the first one, which is known when all
    have ended there. A run of a later seed at another one counts as one of that seed: it was the best before others
    were tried.

    Args:
        path: path of the suite.
        made: results.

    Raises:
        ConfigError: the suite cannot be read, as for ``load``.
    """
    last = counted(made)
    suite = _read(path)
    with _named(path):
        groups = _groups(suite, path.parent, _starts(suite, path.parent, last))
    known: dict[str, tuple[int, int]] = {}
    planned = 0
    for number, (firsts, others) in enumerate(groups):
        # Of a method that diverged at all rates no later seed will be made; one may be there from before.
        ended = all_diverged(firsts, last)
        there = [any(job.settings.id in last for job in jobs) for jobs in others]
        planned += len(firsts) + (sum(there) if ended else len(others))
        known |= {job.settings.id: (number, -1 - place) for place, job in enumerate(firsts)}
        known |= {job.settings.id: (number, seed) for seed, jobs in enumerate(others) for job in jobs}
    found: dict[tuple[int, int], bool] = {}
    for job_id, place in known.items():
        if job_id in last:
            found[place] = found.get(place, False) or last[job_id].status == "ok"
    strange = [record.settings for record in last.values() if record.settings.id not in known]
    return Coverage(path.name, sum(found.values()), len(found) - sum(found.values()), planned, strange)


def _starts(suite: Table, folder: Path, last: Mapping[str, Record]) -> dict[str, str | None]:
    """The digest of what the runs of each task begin with, which need not be here: results say what it was.

    Where they have several for a task, as of another suite, it is the one with which most runs of this suite are there.
    """
    found: dict[str, str | None] = dict.fromkeys(suite.get("tasks", ()))
    seen: dict[str, dict[str, None]] = {}
    for record in last.values():
        if record.settings.task in found and record.settings.start is not None:
            seen.setdefault(record.settings.task, {})[record.settings.start] = None

    def there(name: str, start: str) -> int:
        groups = _groups(suite, folder, {**found, name: start})
        jobs = [job for firsts, others in groups for each in (firsts, *others) for job in each]
        return sum(job.settings.task == name and job.settings.id in last for job in jobs)

    for name, starts in seen.items():
        found[name] = max(starts, key=partial(there, name)) if len(starts) > 1 else next(iter(starts))
    return found


def load(path: Path, made: Iterable[Record] = ()) -> list[Job]:
    """Load the runs of a suite, in the order in which they are to be made.

    Args:
        path: path of the suite.
        made: results of its runs, by which the best of several rates is known.

    Raises:
        ConfigError: the file cannot be read, or has a key that is not known or a value that cannot be. The message
            names the file and the key.
    """
    suite, last = _read(path), counted(made)
    with _named(path):
        return _ordered(suite, _groups(suite, path.parent), last)


def _read(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the suite {path} cannot be read: {error}") from None


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the suite in errors."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


Group = tuple[list[Job], list[list[Job]]]
"""The runs of a method at each rate on the first seed; and for each other seed those of which one is made."""


def _groups(suite: Table, folder: Path, starts: Mapping[str, str | None] | None = None) -> list[Group]:
    """Make the runs that a suite may ask for, by what they have in common but the seed and the rate.

    Args:
        suite: tables of the suite, as it is written.
        folder: folder of the suite.
        starts: digests of what the runs of each task begin with; None: of what is there.
    """
    _check(suite, _SUITE, "")
    for name in ("tasks", "methods"):
        require(name in suite, name, _SUITE[name][1], "nothing")
    tasks = {name: _task(name, suite, folder) for name in suite["tasks"]}
    for name in suite.get("task", {}):
        require(name in tasks, f"task.{name}", f"of one of the tasks {', '.join(tasks)}", name)
    used = {method.label for task, _ in tasks.values() for method in _methods(task.name, suite, folder)}
    for name in suite.get("method", {}):
        if name not in used:
            raise ConfigError(f"method.{name} must be of one of the methods: {nearest(name, used)}")
    found = [
        group for name, (task, data) in tasks.items() for group in _of_task(name, task, data, folder, suite, starts)
    ]
    # A method may be named twice.
    return list({tuple(job.settings.id for job in group[0]): group for group in found}.values())


def _ordered(suite: Table, groups: Sequence[Group], made: Mapping[str, Record]) -> list[Job]:
    jobs = [job for firsts, others in groups for job in _known(firsts, others, made)]
    unique = {job.settings.id: job for job in jobs}
    places = {job_id: place for place, job_id in enumerate(unique)}
    baseline = suite.get("baseline", "none")

    def order(job: Job) -> tuple[object, ...]:
        known = job.settings
        return known.seed, known.method != baseline, known.link, known.workers, places[known.id]

    return sorted(unique.values(), key=order)


def _known(firsts: Sequence[Job], others: Sequence[Sequence[Job]], made: Mapping[str, Record]) -> Iterator[Job]:
    """Yield the runs of a group that can be made: those of later seeds when the best rate is known."""
    yield from firsts
    best = best_of(firsts, [made.get(each.settings.id) for each in firsts])
    if best is not None:
        yield from (jobs[best] for jobs in others)


def _of_task(
    name: str, task: Task, data: Path | None, folder: Path, suite: Table, starts: Mapping[str, str | None] | None
) -> Iterator[Group]:
    backend = suite.get("backend", "gloo")
    own = suite.get("task", {}).get(name, {})
    given = suite.get("seeds", 1)
    first, *others = range(given) if isinstance(given, int) else given
    start = folder / own["start"] if "start" in own else None
    digest = begun(task, start) if starts is None else starts[name] if start is not None else None

    def job(method: Method, workers: int, link: str, seed: int, *, tuned: bool) -> Job:
        changed = dataclasses.replace(method, recipe={**own.get("recipe", {}), **method.recipe})
        settings = settings_of(
            task,
            changed,
            workers=workers,
            link=str(Link.read(link)),
            seed=seed,
            epochs=own.get("epochs"),
            start=digest,
            backend=backend,
            device=device_of(backend, suite.get("device")),
            tuned=tuned,
        )
        _possible(link, workers, backend)
        return Job(settings, data, start=start)

    for method in _methods(name, suite, folder):
        for workers in suite.get("workers", [2]):
            for link in suite.get("links", ["none"]):
                candidates = _at_rates(method, name, suite)
                tuned = len(candidates) > 1
                yield (
                    [job(each, workers, link, first, tuned=tuned) for each in candidates],
                    [[job(each, workers, link, seed, tuned=tuned) for each in candidates] for seed in others],
                )


def _at_rates(method: Method, task: str, suite: Table) -> list[Method]:
    """The method at each learning rate of the suite; unchanged if the suite names none."""
    own = suite.get("method", {}).get(method.label, {}), suite.get("task", {}).get(task, {}), suite
    rates = next((table["rates"] for table in own if "rates" in table), None)
    if rates is None:
        return [method]
    return [dataclasses.replace(method, recipe={**method.recipe, "lr": float(rate)}) for rate in dict.fromkeys(rates)]


def best_of(candidates: Sequence[Job], found: Sequence[Record | None]) -> int | None:
    """The number of the candidate whose run ended best, the first among equals; None if one has not ended yet, or all
    failed.
    """
    if len(candidates) == 1:
        return 0
    ended = [record for record in found if record is not None]
    if len(ended) < len(candidates):
        return None
    good = {
        place: record.quality
        for place, record in enumerate(ended)
        if record.status == "ok" and record.quality is not None and math.isfinite(record.quality)
    }
    choose = max if ended[0].higher_is_better else min
    return choose(good, key=lambda place: good[place]) if good else None


def all_diverged(candidates: Sequence[Job], made: Mapping[str, Record]) -> bool:
    """Return whether runs at several rates all ended, and none with a finite quality; a failed one may be repeated.

    Args:
        candidates: runs at the rates that are tried.
        made: results by their id.
    """
    found = [made.get(each.settings.id) for each in candidates]
    ended = all(record is not None and record.status == "ok" for record in found)
    return ended and best_of(candidates, found) is None


def _possible(link: str, workers: int, backend: str) -> None:
    """Refuse links that a lab would refuse only after other runs have been made."""
    if Link.read(link) != Link():
        require(backend == "gloo", "links", "none with nccl", link)
        require(workers > 1, "workers", f"at least 2 with links such as {link!r}", workers)


def _task(name: str, suite: Table, folder: Path) -> tuple[Task, Path | None]:
    own = suite.get("task", {}).get(name, {})
    _check(own, _TASK, f"task.{name}.")
    data = folder / own["data"] if "data" in own else None
    made: Task = find_task(name)(own.get("model"), data)
    return made, data


def _methods(task: str, suite: Table, folder: Path) -> list[Method]:
    own = suite.get("task", {}).get(task, {})
    texts: list[str] = [suite.get("baseline", "none")]
    for text in own.get("methods", suite["methods"]):
        texts += labels() if text == _EVERY else [text]
    return [_method(text, task, suite, folder) for text in dict.fromkeys(texts)]


def _method(label: str, task: str, suite: Table, folder: Path) -> Method:
    own = suite.get("method", {}).get(label, {})
    _check(own, _METHOD, f"method.{label}.")
    method = method_of(registered(own.get("method", label), folder), task, own=not suite.get("recommended", True))
    common = suite.get("task", {}).get(task, {}).get("options", {}) if method.hook is None else {}
    return dataclasses.replace(
        method,
        label=label,
        options={**method.options, **common, **own.get("options", {})},
        recipe={**method.recipe, **own.get("recipe", {})},
        loss_scale=float(own.get("loss_scale", method.loss_scale)),
        optimizer=named_of(own["optimizer"]) if "optimizer" in own else method.optimizer,
        parallel=own.get("parallel", suite.get("parallel", method.parallel)),
        weights=own.get("weights"),
    )


def _check(table: Any, known: Mapping[str, _Check], under: str) -> None:
    require(isinstance(table, dict), under.rstrip("."), "a table", table)
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{under}{key} is no key of a suite: {nearest(key, known)}")
        good, allowed = known[key]
        require(good(value), f"{under}{key}", allowed, value)
