"""The time of a step on each link: the survey's Figures 9 and 10, a slow network against a fast one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradwire_lab.report._bars import Mark, rows_figure, rows_height
from gradwire_lab.report._look import Plot, log_axis
from gradwire_lab.report._replayed_exchanges import ReplayedExchanges, exchanges, link_text
from gradwire_lab.report._results import Results

__all__ = ["NOTE", "PLACE", "TITLE", "blocks", "marks"]

PLACE = 110
TITLE = "A step on a slow and on a fast link"
NOTE = (
    "Gradients of the model's real shapes, exchanged without training; median and quartiles of the slowest worker. "
    "After Figures 9 and 10 of GRACE's survey."
)


def blocks(results: Results) -> Iterable[Plot]:
    """One plot for each model and number of workers."""
    for found in exchanges(results):
        drawn = marks(found)
        x = log_axis("milliseconds a step", _ends(drawn), "{:g}".format)
        yield Plot(found.title, rows_figure(drawn, x), rows_height(drawn))


def marks(found: ReplayedExchanges) -> list[Mark]:
    """Make a mark for each method and link, in milliseconds."""
    return [
        Mark(
            method,
            found.family(method),
            link_text(link),
            1e3 * row["seconds"],
            [f"{1e3 * row['seconds']:.4g} ms a step"],
            1e3 * row["seconds_low"],
            1e3 * row["seconds_high"],
        )
        for method in found.methods
        for link in found.links
        if (row := found.rows.get((method, link))) is not None
    ]


def _ends(drawn: Sequence[Mark]) -> list[float]:
    return [end for mark in drawn for end in (mark.low, mark.high) if end]
