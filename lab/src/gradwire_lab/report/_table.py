"""Tables as data: the page, the terminal and Markdown show the same one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["UNKNOWN", "Cell", "Table", "bytes_cell", "number", "words"]

Tone = Literal["", "noise", "better", "worse", "failed"]


@dataclass(frozen=True)
class Cell:
    """The content of one cell of a table.

    Args:
        text: text for a reader.
        sort: value by which a column is sorted; None: the text.
        tone: a judgement, which colours it.
    """

    text: str
    sort: float | None = None
    tone: Tone = ""


@dataclass(frozen=True)
class Table:
    """Rows under heads.

    Args:
        choice: name of the table in the section's menu.
        heads: heads of the columns; the first one names the rows.
        rows: rows of cells, as many as heads.
        notes: lines below.
        brief: the columns that a narrow terminal shows.
    """

    choice: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    brief: Sequence[str] = field(default_factory=tuple)

    def as_dict(self) -> dict[str, Any]:
        """Return the table for JSON: for each cell the value that it is sorted by, else its text; None if it is not
        known.
        """
        rows = [{head: _value(cell) for head, cell in zip(self.heads, row, strict=True)} for row in self.rows]
        return {"choice": self.choice, "rows": rows, "notes": list(self.notes)}

    def numeric(self, column: int) -> bool:
        """Return whether a column holds figures, which are aligned at its right edge."""
        return any(row[column].sort is not None for row in self.rows)


UNKNOWN = Cell("-")


def words(text: str, tone: Tone = "") -> Cell:
    """Make a cell that is sorted as text."""
    return Cell(text, None, tone)


def number(value: float | None, form: str, tone: Tone = "") -> Cell:
    """Make a cell from a figure and a format; it is a dash if the figure is not known or not finite."""
    return UNKNOWN if value is None or not math.isfinite(value) else Cell(form.format(value), value, tone)


def bytes_cell(value: float | None) -> Cell:
    """Make a cell from a number of bytes."""
    return number(value, "{:,.0f}")


def _value(cell: Cell) -> str | float | None:
    if cell.sort is not None:
        return cell.sort if math.isfinite(cell.sort) else None
    return None if cell is UNKNOWN else cell.text
