"""The file of a check: one JSON line for each row, on the disk as soon as the row is known.

Invariants:
    * A row is identified by its part, its case, its number of ranks and the way in which they share a GPU. One that is
      there is not measured again, so that a second call continues where the first one ended.
    * Rank 0 of a group appends rows itself: what it has found is kept whatever happens to the process that started it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gradwire._files import for_json
from gradwire.errors import ConfigError
from gradwire_lab.experiments.records import append_line, check

__all__ = ["KIND", "Row", "RowsFile", "described", "is_wrong"]

KIND = "nccl"
"""The first word of each line."""

Row = dict[str, Any]

_WRONG = ("difference", "error", "waits")
"""Names under which a row says what is wrong."""


class RowsFile:
    """The rows of a check.

    Args:
        path: file that is made if need be; rows that it has are read.

    Raises:
        ConfigError: the file has something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        check(path)

    @property
    def lines(self) -> list[Row]:
        """All lines, those that describe a call among them.

        Raises:
            ConfigError: a line is none of this check's.
        """
        if not self.path.exists():
            return []
        found = []
        for number, text in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            if not isinstance(line, dict) or line.get("kind") != KIND:
                raise ConfigError(f"{self.path}, line {number}: no row of gradwire check nccl: name another file")
            found.append(line)
        return found

    @property
    def rows(self) -> list[Row]:
        """The rows so far, in the order in which they came."""
        return [line for line in self.lines if "case" in line]

    def has(self, part: str, case: str, ranks: int, way: str) -> bool:
        """Return whether a row is there."""
        wanted = part, case, ranks, way
        return any((row["part"], row["case"], row["ranks"], row["way"]) == wanted for row in self.rows)

    def append(self, row: Row) -> None:
        """Append a row, or a description of a call, and wait until it is on the disk."""
        append_line(self.path, json.dumps({"kind": KIND, **for_json(row)}))


def is_wrong(row: Row) -> bool:
    """Return whether a row failed, or differs from what is expected."""
    return any(row.get(name) for name in _WRONG)


def described(row: Row) -> str:
    """Describe a row in one line."""
    said = next((row[name] for name in (*_WRONG, "refused", "left_out") if row.get(name)), "")
    named = f"{row['part']}: {row['case']}, {row['ranks']} ranks, {row['way']}"
    return f"{named}: {said}" if said else named
