"""Replayed exchanges in a table: step time and speed-up on each link, and the break-even bandwidth."""

from __future__ import annotations

from collections.abc import Iterable

from gradwire_lab.report._replay_table import tables
from gradwire_lab.report._results import Results
from gradwire_lab.report._table import Table

__all__ = ["NOTE", "PLACE", "TITLE", "blocks"]

PLACE = 100
TITLE = "Links compared"
NOTE = (
    "Step times are medians; x is the speed-up over plain DDP on the same link, or over what is named below where that "
    "was not replayed, coloured where the quartiles of the two do not overlap. Break-even is the bandwidth at which "
    "both cost the same, see below."
)


def blocks(results: Results) -> Iterable[Table]:
    """One table for each model and number of workers."""
    return tables(results)
