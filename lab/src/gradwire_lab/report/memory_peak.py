"""The most memory that a worker held in a run, above what it held when the run began."""

from __future__ import annotations

from collections.abc import Iterable

from gradwire_lab.report._look import Plot
from gradwire_lab.report._memory import growth_note, memory_plots
from gradwire_lab.report._results import Results

__all__ = ["NOTE", "PLACE", "TITLE", "blocks"]

PLACE = 90
TITLE = "Peak memory of a worker"
NOTE = (
    "The resident set of the largest worker at its highest, less what it was when the run began: model, optimizer, "
    "buffers and state, and not the interpreter, the libraries or what earlier runs of the same process left. Runs "
    "that do not say what they began with are left out, and named below. The line: no compression."
)


def blocks(results: Results) -> Iterable[Plot]:
    """One plot for each panel in which the peak of some method is known."""
    return memory_plots(results, lambda entry: entry.growth, "growth", growth_note)
