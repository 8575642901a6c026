"""Quality against data volume, packed and unpacked: the survey's Figure 7."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradwire_lab.report._look import Plot, Spec, log_axis
from gradwire_lab.report._panels import Panel
from gradwire_lab.report._quality import data_size, dot, panel_plots
from gradwire_lab.report._results import Results
from gradwire_lab.report._scatter import Dot

__all__ = ["NOTE", "PLACE", "TITLE", "blocks", "dots"]

PLACE = 30
TITLE = "Quality against data volume"
NOTE = (
    "What a worker hands to collectives in a step. A mark is the volume as it is sent, packed to its true number of "
    "bits; the ring at the end of its line is what it would be were each code held in the smallest whole integer or "
    "float type, as in GRACE's survey (Figure 7)."
)


def blocks(results: Results) -> Iterable[Plot]:
    """One plot for each panel in which two volumes are known."""
    return panel_plots(results, dots, _axis)


def dots(panel: Panel) -> list[Dot]:
    """Make a dot for each method that sent something; its tail ends at the unpacked volume if that differs by 1 % or
    more.
    """
    found: list[Dot | None] = []
    for entry in panel.entries:
        packed, unpacked = entry.mean("bytes_per_step"), entry.mean("unpacked_bytes_per_step")
        if packed:
            tail = unpacked if unpacked and abs(unpacked / packed - 1) >= 0.01 else None
            found.append(dot(panel, entry, packed, tail=tail))
    return [each for each in found if each is not None]


def _axis(found: Sequence[Dot]) -> Spec:
    ends = [x for each in found for x in (each.x, each.tail) if x is not None]
    return log_axis("a step", ends, data_size)
