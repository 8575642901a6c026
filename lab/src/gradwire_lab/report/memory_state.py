"""Memory that a worker keeps for a method from step to step."""

from __future__ import annotations

from collections.abc import Iterable

from gradwire_lab.report._look import Plot
from gradwire_lab.report._memory import memory_plots
from gradwire_lab.report._results import Results

__all__ = ["NOTE", "PLACE", "TITLE", "blocks"]

PLACE = 80
TITLE = "Memory that a method keeps"
NOTE = "Residuals, momenta and factors of a worker, from step to step, as they are in a checkpoint."


def blocks(results: Results) -> Iterable[Plot]:
    """One plot for each panel in which a method keeps anything."""
    return memory_plots(results, lambda entry: entry.mean("state_bytes"), "state")
