"""What a report is made of: lines of results, each known by what it has.

Law: nothing is left out in silence. A line is a training run, a replayed exchange or a codec's figures, or it is an
error that names the file and the line; of a file that was cut off while it was written, the last line is no line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gradwire.bench.records import Record
from gradwire.bench.report._panels import Panel, panels
from gradwire.errors import ConfigError

__all__ = ["Results", "read"]

Row = dict[str, Any]

_REPLAY = {"model", "method", "link", "workers", "parameters"}
_CODEC = {"method", "params", "op", "size"}


@dataclass(frozen=True)
class Results:
    """What was measured.

    Args:
        runs: trainings; of several with equal settings the one that counts, which is the last that did not fail.
        replays: rows of ``gradwire replay``.
        codecs: rows of ``gradwire bench codec``.
        files: the names of those that were read.
        replaced: how many runs were repeated later, with equal settings.
    """

    runs: Sequence[Record] = ()
    replays: Sequence[Row] = ()
    codecs: Sequence[Row] = ()
    files: Sequence[str] = ()
    replaced: int = 0

    @cached_property
    def panels(self) -> list[Panel]:
        """The runs that ended well, in groups that may be compared."""
        return panels(self.runs)


def read(paths: Sequence[Path]) -> Results:
    """Everything that the files hold.

    Args:
        paths: of JSON lines, or of JSON arrays as ``gradwire bench codec --json`` writes them.

    Raises:
        ConfigError: a file that cannot be read or holds nothing, or a line that is no result.
    """
    runs: list[Record] = []
    rows: dict[str, list[Row]] = {"replay": [], "codec": []}
    for path in paths:
        count = 0
        for where, line in _rows(path):
            count += 1
            kind = _kind(line, where)
            if kind == "train":
                runs.append(_at(where, Record.from_dict, line))
            else:
                rows[kind].append(line)
        if not count:
            raise ConfigError(f"{path}, line 1: a file of results must hold some, and this one is empty")
    kept = _last(runs)
    return Results(kept, rows["replay"], rows["codec"], [path.name for path in paths], len(runs) - len(kept))


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Parsed values, each with the place where it stands."""
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
    if isinstance(line, Mapping):
        if line.get("kind") == "train":
            return "train"
        if line.keys() >= _REPLAY and line.keys() & {"seconds", "error"}:
            return "replay"
        if line.keys() >= _CODEC and line.keys() & {"seconds", "skipped"}:
            return "codec"
    raise ConfigError(
        f"{where}: a line must be a run of 'gradwire train', a row of 'gradwire replay' or a row of "
        f"'gradwire bench codec', got {json.dumps(line)[:80]}"
    )


def _last(runs: Iterable[Record]) -> list[Record]:
    kept: dict[str, Record] = {}
    for run in runs:
        before = kept.get(run.settings.id)
        if before is None or run.status == "ok" or before.status != "ok":
            kept[run.settings.id] = run
    return list(kept.values())
