"""Training loss over steps, a line for each run."""

from __future__ import annotations

from collections.abc import Iterable

from gradwire_lab.report._look import Plot
from gradwire_lab.report._losses import loss_plots
from gradwire_lab.report._results import Results

__all__ = ["NOTE", "PLACE", "TITLE", "blocks"]

PLACE = 12
TITLE = "Training loss over steps"
NOTE = "A line for each run. A click in the legend hides lines, a double click all others."


def blocks(results: Results) -> Iterable[Plot]:
    """One plot for each group of runs that can be compared."""
    return loss_plots(results, "step")
