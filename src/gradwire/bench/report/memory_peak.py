"""The most memory that a worker ever held."""

from __future__ import annotations

from collections.abc import Iterable

from gradwire.bench.report._look import Plot
from gradwire.bench.report._memory import memory_plots
from gradwire.bench.report._results import Results

__all__ = ["NOTE", "PLACE", "TITLE", "blocks"]

PLACE = 90
TITLE = "Peak memory of a worker"
NOTE = "The resident set of the largest worker: interpreter, libraries, model, data and all. The line: no compression."


def blocks(results: Results) -> Iterable[Plot]:
    """One for each panel in which it is known."""
    return memory_plots(results, "peak_rss_bytes", "peak", from_zero=False)
