"""Quality over epochs: the left half of the survey's Figure 1."""

from __future__ import annotations

from collections.abc import Iterable

from gradwire_lab.report._curves import curve_plots
from gradwire_lab.report._look import Plot
from gradwire_lab.report._results import Results

__all__ = ["NOTE", "PLACE", "TITLE", "blocks"]

PLACE = 50
TITLE = "Quality over epochs"
NOTE = "Means over the seeds. A click in the legend hides lines, a double click all others."


def blocks(results: Results) -> Iterable[Plot]:
    """One plot for each panel with a history."""
    return curve_plots(results, "epoch", "epoch")
