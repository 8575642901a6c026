"""A suite as it is written in TOML: methods x tasks x workers x links x seeds.

    tasks = ["classification", "language"]       # files of gradwire.bench.tasks
    methods = ["all", "topk:ratio=0.001"]        # as on the command line; "all": every one, as it is recommended
    workers = [2, 4]
    links = ["none", "100mbit", "1gbit+1ms"]     # none: the loopback; others need root
    seeds = 3                                    # 0, 1 and 2; or a list
    baseline = "none"                            # runs before the others, asked for or not
    recommended = true                           # false: each compressor's own defaults, whatever the task
    backend = "gloo"

    [task.language]                              # what differs on one task
    epochs = 2
    model = "lstm"
    data = "folder"                              # relative to the suite
    methods = ["topk"]                           # in place of those above
    recipe = { lr = 10.0 }

    [method."topk:ratio=0.001"]                  # what differs for one method
    options = { strategy = "two_phase" }
    recipe = { momentum = 0.0 }
    loss_scale = 1.0

    [method."topk, nothing kept"]                # one method twice: here under a name of its own
    method = "topk:ratio=0.001"
    options = { memory = "none", force = true }

Law: the order is the one in which a suite that is cut off says most: the first seed of everything before the second,
the baseline before the methods, and runs of the same workers and link together, because they share one group.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gradwire import registry
from gradwire.bench.job import BACKENDS, MOST_SEED, PLAIN, Job, device_of, is_plain, settings_of
from gradwire.bench.method import Method
from gradwire.bench.netlab import Link
from gradwire.bench.recommended import labels
from gradwire.bench.tasks.base import Task
from gradwire.bench.written import method_of
from gradwire.errors import ConfigError, is_int, nearest, require

__all__ = ["load"]

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

_SUITE: dict[str, _Check] = {
    "tasks": _TEXTS, "methods": _TEXTS, "links": _TEXTS, "baseline": _TEXT, "device": _TEXT,
    "workers": _lists(lambda value: is_int(value, 1, _MOST_WORKERS), f"integers in [1, {_MOST_WORKERS}]"),
    "seeds": (
        lambda value: is_int(value, 1) or _lists(lambda seed: is_int(seed, 0, MOST_SEED), "seeds")[0](value),
        "how many, or a list of integers in [0, 2^63)",
    ),
    "recommended": (_is(bool), "true or false"), "task": _TABLE, "method": _TABLE,
    "backend": (lambda value: value in BACKENDS, " or ".join(BACKENDS)),
}  # fmt: skip
_TASK: dict[str, _Check] = {
    "epochs": (lambda value: is_int(value, 1), "an integer >= 1"), "model": _TEXT, "data": _TEXT, "methods": _TEXTS,
    "recipe": _VALUES,
}  # fmt: skip
_METHOD: dict[str, _Check] = {
    "method": _TEXT, "options": _VALUES, "recipe": _VALUES,
    "loss_scale": (lambda value: _is(int, float)(value) and 0 < value < math.inf, "finite and above 0"),
}  # fmt: skip


def load(path: Path) -> list[Job]:
    """The runs of a suite, in the order in which they are to be made.

    Raises:
        ConfigError: it cannot be read; a key that is not known, a value that cannot be. It names the file and the key.
    """
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the suite {path} cannot be read: {error}") from None
    try:
        return _ordered(written, path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _ordered(suite: Table, folder: Path) -> list[Job]:
    _check(suite, _SUITE, "")
    for name in ("tasks", "methods"):
        require(name in suite, name, _SUITE[name][1], "nothing")
    tasks = {name: _task(name, suite, folder) for name in suite["tasks"]}
    for name in suite.get("task", {}):
        require(name in tasks, f"task.{name}", f"of one of the tasks {', '.join(tasks)}", name)
    used = {method.label for task, _ in tasks.values() for method in _methods(task.name, suite)}
    for name in suite.get("method", {}):
        if name not in used:
            raise ConfigError(f"method.{name} must be of one of the methods: {nearest(name, used)}")
    jobs = [job for name, (task, folder_of) in tasks.items() for job in _of_task(name, task, folder_of, suite)]
    unique = {job.settings.id: job for job in jobs}
    places = {job_id: place for place, job_id in enumerate(unique)}
    baseline = suite.get("baseline", "none")

    def order(job: Job) -> tuple[object, ...]:
        known = job.settings
        return known.seed, known.method != baseline, known.link, known.workers, places[known.id]

    return sorted(unique.values(), key=order)


def _of_task(name: str, task: Task, folder: Path | None, suite: Table) -> Iterator[Job]:
    backend = suite.get("backend", "gloo")
    own = suite.get("task", {}).get(name, {})
    seeds = suite.get("seeds", 1)
    for method in _methods(name, suite):
        for workers in suite.get("workers", [2]):
            for link in suite.get("links", ["none"]):
                for seed in range(seeds) if isinstance(seeds, int) else seeds:
                    changed = dataclasses.replace(method, recipe={**own.get("recipe", {}), **method.recipe})
                    settings = settings_of(
                        task, changed, workers=workers, link=str(Link.read(link)), seed=seed,
                        epochs=own.get("epochs"), backend=backend, device=device_of(backend, suite.get("device")),
                    )  # fmt: skip
                    _possible(link, workers, backend)
                    yield Job(settings, folder)


def _possible(link: str, workers: int, backend: str) -> None:
    """Refuse here what a lab would refuse when other runs have been made."""
    if Link.read(link) != Link():
        require(backend == "gloo", "links", "none with nccl", link)
        require(workers > 1, "workers", f"at least 2 with links such as {link!r}", workers)


def _task(name: str, suite: Table, folder: Path) -> tuple[Task, Path | None]:
    own = suite.get("task", {}).get(name, {})
    _check(own, _TASK, f"task.{name}.")
    data = folder / own["data"] if "data" in own else None
    made: Task = registry.find("bench.tasks", name)(own.get("model"), data)
    return made, data


def _methods(task: str, suite: Table) -> list[Method]:
    own = suite.get("task", {}).get(task, {})
    texts: list[str] = [suite.get("baseline", "none")]
    for text in own.get("methods", suite["methods"]):
        texts += labels() if text == _EVERY else [text]
    return [_method(text, task, suite) for text in dict.fromkeys(texts)]


def _method(label: str, task: str, suite: Table) -> Method:
    own = suite.get("method", {}).get(label, {})
    _check(own, _METHOD, f"method.{label}.")
    method = method_of(own.get("method", label), task, own=not suite.get("recommended", True))
    return dataclasses.replace(
        method, label=label, options={**method.options, **own.get("options", {})},
        recipe={**method.recipe, **own.get("recipe", {})}, loss_scale=float(own.get("loss_scale", method.loss_scale)),
    )  # fmt: skip


def _check(table: Any, known: Mapping[str, _Check], under: str) -> None:
    require(isinstance(table, dict), under.rstrip("."), "a table", table)
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{under}{key} is no key of a suite: {nearest(key, known)}")
        good, allowed = known[key]
        require(good(value), f"{under}{key}", allowed, value)
