"""Results that a report is made of: lines in files, whose kind is known by their fields.

Invariants:
    Nothing is left out silently. A line is a training run, a replayed exchange, a cell of ``gradwire check auto``,
    codec's figures, or a step of somebody else's trainer; any other line is an error that names the file and the line.
    The exception is an incomplete last line of a file that was cut off while it was written, which is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gradwire.errors import ConfigError
from gradwire_lab.experiments.records import Record, counted, kind_of
from gradwire_lab.experiments.suite import Coverage, coverage
from gradwire_lab.report._lines import Logged, checked_cell, checked_codec, checked_log, checked_replay, checked_run
from gradwire_lab.report._panels import Panel, panels

__all__ = ["Results", "read"]

Row = dict[str, Any]

_CHECKED: dict[str, Callable[[Any], Any]] = {
    "train": checked_run,
    "replay": checked_replay,
    "auto": checked_cell,
    "codec": checked_codec,
    "log": checked_log,
}


@dataclass(frozen=True)
class Log:
    """A run of another trainer.

    Args:
        name: name of its file, without what its kind is.
        points: lines of the file, at least one, with increasing steps.
    """

    name: str
    points: Sequence[Logged]


@dataclass(frozen=True)
class Results:
    """The results that were measured.

    Args:
        runs: trainings; of several with equal settings the one that counts, which is the last that did not fail.
        replays: rows of ``gradwire replay``.
        codecs: rows of ``gradwire bench codec``.
        files: the names of those that were read.
        replaced: number of runs that were repeated later, with equal settings.
        cells: cells of ``gradwire check auto`` that did not fail.
        coverages: numbers of runs of suites that are among them.
        logs: runs of other trainers.
    """

    runs: Sequence[Record] = ()
    replays: Sequence[Row] = ()
    codecs: Sequence[Row] = ()
    files: Sequence[str] = ()
    replaced: int = 0
    cells: Sequence[Row] = ()
    coverages: Sequence[Coverage] = ()
    logs: Sequence[Log] = ()

    @cached_property
    def panels(self) -> list[Panel]:
        """The runs that ended well, in groups that may be compared."""
        return panels(self.runs)


def read(paths: Sequence[Path], suites: Sequence[Path] = ()) -> Results:
    """Read everything that the files hold.

    Args:
        paths: paths of JSON lines, or of JSON arrays as ``gradwire bench codec --json`` writes them.
        suites: suites whose runs are counted.

    Raises:
        ConfigError: a file that cannot be read or holds nothing, or a line that is no result.
    """
    rows: dict[str, list[Any]] = {kind: [] for kind in _CHECKED}
    logs = []
    names = _names(paths)
    for path in paths:
        count = 0
        for where, line in _rows(path):
            count += 1
            kind = _kind(line, where)
            rows[kind].append(_at(where, _CHECKED[kind], line))
            steps = [each.step for each in rows["log"][-2:]]
            if kind == "log" and steps != sorted({*steps}):
                raise ConfigError(f"{where}: a file is one run, so step must be larger than {steps[0]}, got {steps[1]}")
        if rows["log"]:
            logs.append(Log(names[path], tuple(rows["log"])))
            rows["log"].clear()
        if not count:
            raise ConfigError(f"{path}, line 1: a file of results must hold some, and this one is empty")
    kept = list(counted(rows["train"]).values())
    replaced = len(rows["train"]) - len(kept)
    # A cell that was measured again counts as it was last; one that failed says nothing.
    cells = list({row["id"]: row for row in rows["auto"] if "error" not in row}.values())
    coverages = [coverage(suite, rows["train"]) for suite in suites]
    return Results(kept, rows["replay"], rows["codec"], [path.name for path in paths], replaced, cells, coverages, logs)


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """A name for each file: without its folder, where no other one has the same.

    >>> list(_names([Path("a/log.jsonl"), Path("b/log.jsonl"), Path("own.jsonl")]).values())
    ['a/log', 'b/log', 'own']
    """
    stems = [path.stem for path in paths]
    return {path: path.stem if stems.count(path.stem) == 1 else str(path.with_suffix("")) for path in paths}


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield parsed values, each with the place in the file where it stands."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: no file of results can be read there: {error}") from None
    if text.lstrip().startswith("["):
        whole = _at(str(path), json.loads, text)
        yield from ((f"{path}, element {number}", each) for number, each in enumerate(whole, 1))
        return
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        cut_off = number == len(lines)
        if line.strip() and not (cut_off and not _whole(line)):
            where = f"{path}, line {number}"
            yield where, _at(where, json.loads, line)


def _whole(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _at(where: str, parse: Callable[[Any], Any], given: Any) -> Any:
    try:
        return parse(given)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _kind(line: Any, where: str) -> str:
    kind = kind_of(line) if isinstance(line, Mapping) else None
    if kind is None and isinstance(line, Mapping) and line.keys() & {"step", "loss"}:
        kind = "log"
    if kind is not None:
        return kind
    raise ConfigError(
        f"{where}: a line must be a run of 'gradwire train', a row of 'gradwire replay', a cell of "
        "'gradwire check auto', a row of 'gradwire bench codec', or a step of your own trainer with step and loss, and "
        f"perhaps seconds and bytes, got {json.dumps(line)[:80]}"
    )
