"""Training loss over the time of training, a line for each run."""

from __future__ import annotations

from collections.abc import Iterable

from gradwire_lab.report._look import Plot
from gradwire_lab.report._losses import loss_plots
from gradwire_lab.report._results import Results

__all__ = ["NOTE", "PLACE", "TITLE", "blocks"]

PLACE = 14
TITLE = "Training loss over wall time"
NOTE = "The same lines over the time that training took."


def blocks(results: Results) -> Iterable[Plot]:
    """One plot for each group of runs that can be compared."""
    return loss_plots(results, "seconds")
