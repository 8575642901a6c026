"""Plots of the memory that the methods of a panel use, as rows of marks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gradwire_lab.report._bars import Mark, rows_figure, rows_height
from gradwire_lab.report._look import Plot, Spec, axis
from gradwire_lab.report._panels import Panel, PanelEntry
from gradwire_lab.report._quality import data_size
from gradwire_lab.report._results import Results

__all__ = ["growth_note", "memory_marks", "memory_plots"]

Size = Callable[[PanelEntry], float | None]


def memory_plots(
    results: Results, size: Size, title: str, notes: Callable[[Panel], Sequence[str]] = lambda _: ()
) -> Iterator[Plot]:
    """One plot for each panel in which a size is known and not zero.

    Args:
        results: results that were measured.
        size: bytes of a method; None: not known.
        title: title of the axis, which begins at zero.
        notes: function that gives the lines below the plot.
    """
    for panel in results.panels:
        marks = memory_marks(panel, size, title)
        if any(mark.x for mark in marks):
            plain = None if panel.baseline is None else size(panel.baseline)
            span: Spec = {"range": [-0.03 * marks[0].x, 1.06 * marks[0].x]}
            x = axis(f"{title}, MB", **span)
            megabytes = None if plain is None else plain / 1e6
            yield Plot(panel.title, rows_figure(marks, x, at=megabytes), rows_height(marks), notes(panel))


def memory_marks(panel: Panel, size: Size, title: str) -> list[Mark]:
    """Marks for sizes in megabytes, the largest first; each is a mean over the seeds."""
    sizes = [(entry, found) for entry in panel.entries if (found := size(entry)) is not None]
    ordered = sorted(sizes, key=lambda each: (-each[1], each[0].method))
    return [Mark(entry.method, entry.family, title, found / 1e6, [data_size(found)]) for entry, found in ordered]


def growth_note(panel: Panel) -> list[str]:
    """A sentence on the methods whose peak is not shown, and why; None if none is missing."""
    with_peak = [entry for entry in panel.entries if any(run.peak_rss_bytes is not None for run in entry.runs)]
    lost = [entry.method for entry in with_peak if entry.growth is None]
    if not lost:
        return []
    names = "any method" if len(lost) == len(with_peak) else ", ".join(lost)
    return [
        f"Peak memory is not shown of {names}: the runs do not say what their worker held when they began, and a "
        "worker that has made other runs still holds what these left."
    ]
