"""Quality against throughput relative to no compression: the survey's Figure 6."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gradwire_lab.report._look import Plot, axis
from gradwire_lab.report._panels import Panel, PanelEntry
from gradwire_lab.report._quality import dot, panel_plots
from gradwire_lab.report._results import Results
from gradwire_lab.report._scatter import Dot

__all__ = ["NOTE", "PLACE", "TITLE", "blocks", "dots"]

PLACE = 20
TITLE = "Quality against throughput"
NOTE = (
    "Throughput is examples a second of all workers, evaluations left out, over that of the uncompressed runs: right "
    "of 1 is faster. Bars are one standard deviation over the seeds; grey is the noise floor around the uncompressed "
    "quality. After Figure 6 of GRACE's survey."
)


def blocks(results: Results) -> Iterable[Plot]:
    """One plot for each panel in which two speeds are known, one of them that of no compression."""
    return panel_plots(results, dots, lambda _: axis("throughput over no compression"))


def dots(panel: Panel) -> list[Dot]:
    """The methods of known speed; the uncompressed one is at x = 1."""
    found = (dot(panel, entry, *_place(panel, entry)) for entry in panel.entries)
    return [each for each in found if each is not None]


def _place(panel: Panel, entry: PanelEntry) -> tuple[float, float]:
    """The relative throughput, and the standard deviation of its numerator on the same scale."""
    relative, speed = panel.relative_speed(entry), entry.speed
    if relative is None or speed is None or not speed.mean:
        return math.nan, 0.0
    return relative, relative * speed.deviation / speed.mean
