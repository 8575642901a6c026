"""Codec rows by method: different conditions make different methods, and of equal rows the last one counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gradwire_lab.bench.codec import label
from gradwire_lab.report._conditions import conditions

__all__ = ["PHASES", "by_method", "repeated"]

Row = dict[str, Any]

PHASES = ("encode", "decode")


def by_method(rows: Sequence[Row], size: int, figure: str) -> dict[str, dict[str, Row]]:
    """Map each method that has both operations at a size to its two rows.

    Args:
        rows: rows of ``gradwire_lab.bench.codec.rows``; those that lack the figure are left out.
        size: elements.
        figure: a column, "seconds" or "samples".
    """
    found: dict[str, dict[str, Row]] = {}
    for (name, of_size, op), row in _keyed(rows):
        if of_size == size and figure in row:
            found.setdefault(name, {})[op] = row
    return {name: phases for name, phases in found.items() if len(phases) == len(PHASES)}


def repeated(rows: Sequence[Row]) -> int:
    """Count the rows not shown because a later one has the same method, size, operation and conditions."""
    keys = [key for key, row in _keyed(rows) if "seconds" in row]
    return len(keys) - len(set(keys))


def _keyed(rows: Iterable[Row]) -> Iterator[tuple[tuple[str, int, str], Row]]:
    shown = [row for row in rows if row["op"] in PHASES]
    told = conditions(shown)
    for row in shown:
        yield (", ".join([label(row), *told(row)]), row["size"], row["op"]), row
