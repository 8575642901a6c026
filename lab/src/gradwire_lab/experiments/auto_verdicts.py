"""Verdicts on the cells of ``gradwire check auto``: whether "auto" reaches its goals.

Invariants:
    A verdict is about one model on one link. It is derived from ratios of times of one group of workers; of several
    repeats, which have the same number of steps, budget and fixed methods, the median of the ratios counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gradwire.errors import ConfigError

__all__ = ["BEHIND", "LEAST_SHARE", "PLAIN", "Verdict", "read", "verdicts"]

PLAIN = "ddp"
"""The label of what all are compared with: DDP without a hook."""

BEHIND, LEAST_SHARE = 1.02, 0.9
"""Goals: a step of "auto" over one of plain DDP, at most; a step of the best fixed method over its own, at least."""

Row = dict[str, Any]


def read(path: Path, kind: str = "auto") -> list[Row]:
    """Read the cells of a file that did not fail, of several with equal settings the last; other lines are skipped.

    Args:
        path: file of JSON lines; a last line that is cut off does not count.
        kind: the check that wrote them.

    Raises:
        ConfigError: another line that is no JSON.
    """
    found: dict[str, Row] = {}
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    for number, text in enumerate(lines, 1):
        try:
            row = json.loads(text) if text.strip() else None
        except ValueError as error:
            if number == len(lines):
                break
            raise ConfigError(f"{path}, line {number}: {error}") from None
        if isinstance(row, dict) and row.get("kind") == kind and "error" not in row:
            found[row["id"]] = row
    return list(found.values())


@dataclass(frozen=True)
class Verdict:
    """The verdict on "auto" on one link of a cell, from the medians of the repeats.

    Args:
        model: name of the model, as in the rows.
        workers: number of workers.
        link: link, or links that follow one another.
        part: link of this part, as a text.
        number: number of the part, from 0 on.
        compute: seconds of a pretended backward pass.
        repeats: number of repeats that were measured.
        plain: seconds of a step of plain DDP.
        auto: seconds of a step of "auto".
        behind: ``auto`` over ``plain``, each of one repeat.
        best: the fastest fixed method that keeps the budget; None: there is none.
        share: the seconds of a step of that method over those of "auto"; None: there is none.
    """

    model: str
    workers: int
    link: str
    part: str
    number: int
    compute: float
    repeats: int
    plain: float
    auto: float
    behind: float
    best: str | None
    share: float | None

    @property
    def holds(self) -> bool:
        """Return whether both goals are reached."""
        return self.behind <= BEHIND and (self.share is None or self.share >= LEAST_SHARE)

    def as_dict(self) -> Row:
        """Return the verdict for JSON."""
        return asdict(self) | {"holds": self.holds}


def verdicts(rows: Iterable[Row]) -> list[Verdict]:
    """Make a verdict for each part of each cell, over its repeats, in the order of the rows.

    Args:
        rows: results of ``measure``; those that failed are left out.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if "parts" in row:
            facts = (row[name] for name in ("model", "workers", "link", "compute", "auto", "gradients"))
            # Rows from before the budget was written have none.
            key = (*facts, row.get("steps"), row.get("budget"), *sorted(row["errors"]))
            groups.setdefault(key, []).append(row)
    return [
        _verdict([row for row in same if len(row["parts"]) > number], number)
        for same in groups.values()
        for number in range(len(same[0]["parts"]))
    ]


def _verdict(rows: Sequence[Row], number: int) -> Verdict:
    first, parts = rows[0], [row["parts"][number]["methods"] for row in rows]
    auto = [part[row["auto"]]["seconds"] for row, part in zip(rows, parts, strict=True)]
    plain = [part[PLAIN]["seconds"] for part in parts]
    # The best one is the same in all repeats: the fastest of several would be the one that was lucky.
    within = [label for label in first["errors"] if all(_keeps(row, label) for row in rows)]
    shares = {
        label: median(part[label]["seconds"] / mine for part, mine in zip(parts, auto, strict=True))
        for label in within
        if all(label in part for part in parts)
    }
    best = min(shares, key=lambda label: shares[label], default=None)
    return Verdict(
        *(first["model"], first["workers"], first["link"], first["parts"][number]["link"], number, first["compute"]),
        repeats=len(rows),
        plain=median(plain),
        auto=median(auto),
        behind=median(mine / other for mine, other in zip(auto, plain, strict=True)),
        best=best,
        share=None if best is None else shares[best],
    )


def _keeps(row: Row, label: str) -> bool:
    error = row["errors"].get(label)
    return error is not None and error <= row["allowed"]
