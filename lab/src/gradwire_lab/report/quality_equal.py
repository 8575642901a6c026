"""Quality at equal steps, at equal bytes and at equal time on a link, in tables."""

from __future__ import annotations

from collections.abc import Iterable

from gradwire_lab.report._equal import tables
from gradwire_lab.report._results import Results
from gradwire_lab.report._spent import NEAR
from gradwire_lab.report._table import Table

__all__ = ["NOTE", "PLACE", "TITLE", "blocks"]

PLACE = 12
TITLE = "At equal bytes and at equal time"
NOTE = (
    "Quality at the end is that at equal steps. Beside it stands what no compression had reached when it had spent as "
    "many bytes, or as much time on a link; a dash: its first epoch had not ended. The last columns say how many times "
    "less than no compression spends in all a method had spent when it first was as good as no compression is at the "
    f"end, and when it was within {NEAR:.0%} of that; a dash: it never was. Time is measured where runs had a link; of "
    "runs over the loopback it is modelled. Both lie on straight lines between epochs."
)


def blocks(results: Results) -> Iterable[Table]:
    """A table for each panel with a history, and for bytes and each link."""
    return tables(results)
