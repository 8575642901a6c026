"""Speed-up of a step over no compression, on each link."""

from __future__ import annotations

from collections.abc import Iterable

from gradwire_lab.report._bars import Mark, rows_figure, rows_height
from gradwire_lab.report._look import Plot, log_axis
from gradwire_lab.report._replayed_exchanges import ReplayedExchanges, exchanges, link_text
from gradwire_lab.report._results import Results

__all__ = ["NOTE", "PLACE", "TITLE", "blocks", "marks"]

PLACE = 120
TITLE = "Speed-up over no compression"
NOTE = (
    "The time of a step of plain DDP on the same link, or of what is named below where that was not replayed, over "
    "that of the method: left of the line it is slower."
)


def blocks(results: Results) -> Iterable[Plot]:
    """One plot for each model and number of workers that has a baseline."""
    for found in exchanges(results):
        drawn = marks(found)
        if drawn:
            x = log_axis("speed-up", [1.0, *(mark.x for mark in drawn)], "{:g}".format)
            yield Plot(found.title, rows_figure(drawn, x, at=1.0), rows_height(drawn), found.instead())


def marks(found: ReplayedExchanges) -> list[Mark]:
    """Make a mark for each method and link on which the baseline ran too."""
    return [
        Mark(
            method,
            found.family(method),
            link_text(link),
            speedup,
            [f"{speedup:.2f} times as fast as {found.compared_with(link)}"],
        )
        for method in found.methods
        for link in found.links
        if (speedup := found.speedup(method, link)) is not None
    ]
