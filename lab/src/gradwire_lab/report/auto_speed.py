"""Speed of "auto" and of each fixed method beside plain DDP, in every cell of ``gradwire check auto``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from gradwire_lab.experiments.auto_verdicts import PLAIN
from gradwire_lab.report._bars import Mark, rows_figure, rows_height
from gradwire_lab.report._families import family_of
from gradwire_lab.report._look import Plot, log_axis
from gradwire_lab.report._replayed_exchanges import link_text
from gradwire_lab.report._results import Results

__all__ = ["NOTE", "PLACE", "TITLE", "blocks", "marks"]

PLACE = 131
TITLE = "auto beside fixed methods"
NOTE = (
    "The time of a step of plain DDP over that of each method, medians of the repeats: left of the line a method is "
    "slower. A fixed method that does not keep auto's budget is drawn, and does not count as the best one."
)

Row = dict[str, Any]


def blocks(results: Results) -> Iterable[Plot]:
    """One plot for each link, or for each part of a run in which the link changes."""
    groups: dict[str, list[tuple[Row, Row]]] = {}
    for row in results.cells:
        for number, part in enumerate(row["parts"], 1):
            changes = len(row["parts"]) > 1
            name = f"{link_text(part['link'])}, part {number}" if changes else link_text(part["link"])
            groups.setdefault(name, []).append((row, part))
    for name, found in groups.items():
        drawn = marks(found)
        x = log_axis("speed-up over plain DDP", [1.0, *(mark.x for mark in drawn)], "{:g}".format)
        symbols = {row["auto"]: "star" for row, _ in found}
        yield Plot(name, rows_figure(drawn, x, at=1.0, symbols=symbols), rows_height(drawn))


def marks(found: Sequence[tuple[Row, Row]]) -> list[Mark]:
    """Make a mark for each model, number of workers and method.

    Args:
        found: cells, each with the part that is drawn.
    """
    speedups: dict[tuple[str, str], list[float]] = {}
    kept: dict[tuple[str, str], bool] = {}
    for row, part in found:
        computed = f", {1e3 * row['compute']:g} ms computed" if row["compute"] else ""
        name = f"{row['model']} x{row['workers']}{computed}"
        for label, times in part["methods"].items():
            if label != PLAIN:
                key = (name, label)
                speedups.setdefault(key, []).append(part["methods"][PLAIN]["seconds"] / times["seconds"])
                error = row["errors"].get(label)
                kept[key] = label == row["auto"] or (error is not None and error <= row["allowed"])
    return [
        Mark(
            name,
            family_of(label, label.partition(":")[0]),
            label,
            median(speedup),
            [
                f"{median(speedup):.2f} times as fast as plain DDP",
                *([] if kept[name, label] else ["beyond the budget"]),
            ],
            min(speedup),
            max(speedup),
        )
        for (name, label), speedup in speedups.items()
    ]
