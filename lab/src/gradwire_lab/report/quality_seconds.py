"""Quality over seconds: the right half of the survey's Figure 1."""

from __future__ import annotations

from collections.abc import Iterable

from gradwire_lab.report._curves import curve_plots
from gradwire_lab.report._look import Plot
from gradwire_lab.report._results import Results

__all__ = ["NOTE", "PLACE", "TITLE", "blocks"]

PLACE = 60
TITLE = "Quality over seconds"
NOTE = (
    "The same lines over the time that training took, evaluations left out: what costs no accuracy an epoch may still "
    "cost time (the survey's Figure 1)."
)


def blocks(results: Results) -> Iterable[Plot]:
    """One plot for each panel with a history."""
    return curve_plots(results, "seconds", "seconds of training")
