"""Conditions under which rows were measured; differences become part of the label, so that no row replaces another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["conditions"]

Row = dict[str, Any]


def conditions(rows: Iterable[Row]) -> Callable[[Row], list[str]]:
    """Describe in words the threads, instructions and machine of a row, as far as they differ between rows.

    >>> rows = [{"threads": 1, "target": "avx2"}, {"threads": 2, "target": "avx2"}, {}]
    >>> [conditions(rows)(row) for row in rows]
    [['1 thread'], ['2 threads'], []]
    """
    found = list(rows)
    several = [name for name in _TEXTS if len({str(row[name]) for row in found if row.get(name) is not None}) > 1]
    return lambda row: [_TEXTS[name](row[name]) for name in several if row.get(name) is not None]


def _threads(count: Any) -> str:
    return f"{count} thread{'s' * (count != 1)}"


_TEXTS: dict[str, Callable[[Any], str]] = {"threads": _threads, "target": str, "machine": str}
