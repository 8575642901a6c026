"""Quality over bytes, and over time on a link."""

from __future__ import annotations

from collections.abc import Iterable

from gradwire_lab.report._curves import drawn
from gradwire_lab.report._look import Plot, log_axis
from gradwire_lab.report._results import Results
from gradwire_lab.report._spent import spendings

__all__ = ["NOTE", "PLACE", "TITLE", "blocks"]

PLACE = 62
TITLE = "Quality over bytes, and over time on a link"
NOTE = (
    "The same lines over what a worker had sent, and over time on links. Time is measured where runs had a link; of "
    "runs over the loopback it is modelled. Where the learning rate falls to the end of a run, a method looks worse in "
    "the middle than a shorter run would."
)


def blocks(results: Results) -> Iterable[Plot]:
    """A plot for each panel with a history, and for bytes and each link."""
    for panel in results.panels:
        for each in spendings(panel):
            curves = [one for one in each.curves if len(one.x) > 1]
            if curves:
                amounts = [amount for one in curves for amount in one.x if amount > 0]
                figure = drawn(panel, curves, log_axis(each.title, amounts, each.text))
                yield Plot(f"{panel.title}: {each.of}", figure, notes=each.notes)
