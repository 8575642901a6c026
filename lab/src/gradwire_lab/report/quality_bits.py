"""Quality against the bits that a worker sent, by parameter and step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradwire_lab.experiments.regions import bits_of
from gradwire_lab.report._look import Plot, Spec, log_axis
from gradwire_lab.report._panels import Panel
from gradwire_lab.report._quality import dot, panel_plots
from gradwire_lab.report._results import Results
from gradwire_lab.report._scatter import Dot

__all__ = ["NOTE", "PLACE", "TITLE", "blocks"]

PLACE = 31
TITLE = "Quality against bits by parameter and step"
NOTE = (
    "What a worker sent, its copies for all the others among it, as a mean over the steps: also those in which nothing "
    "was exchanged. Only where some optimizer exchanges rarely."
)


def blocks(results: Results) -> Iterable[Plot]:
    """One plot for each panel in which an optimizer exchanges every few steps."""
    return panel_plots(results, _dots, _axis)


def _dots(panel: Panel) -> list[Dot]:
    if not any((run.settings.optimizer or {}).get("every") for entry in panel.entries for run in entry.runs):
        return []
    sent = [(entry, entry.over(bits_of)) for entry in panel.entries]
    found = [dot(panel, entry, bits.mean) for entry, bits in sent if bits is not None and bits.mean]
    return [each for each in found if each is not None]


def _axis(found: Sequence[Dot]) -> Spec:
    return log_axis("bits by parameter and step", [each.x for each in found], lambda bits: f"{bits:g}")
