"""Memory of the methods of a panel, as rows of marks."""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.bench.report._bars import Mark, rows_figure, rows_height
from gradwire.bench.report._look import Plot, Spec, axis
from gradwire.bench.report._panels import Panel
from gradwire.bench.report._quality import data_size
from gradwire.bench.report._results import Results

__all__ = ["memory_marks", "memory_plots"]


def memory_plots(results: Results, name: str, title: str, *, from_zero: bool) -> Iterator[Plot]:
    """One for each panel in which any is known and not zero.

    Args:
        results: what was measured.
        name: of the field of a record.
        title: of the axis.
        from_zero: whether the axis begins there.
    """
    for panel in results.panels:
        marks = memory_marks(panel, name)
        if any(mark.x for mark in marks):
            plain = None if panel.baseline is None else panel.baseline.mean(name)
            span: Spec = {"range": [-0.03 * marks[0].x, 1.06 * marks[0].x]} if from_zero else {}
            x = axis(f"{title}, MB", **span)
            megabytes = None if plain is None else plain / 1e6
            yield Plot(panel.title, rows_figure(marks, x, at=megabytes), rows_height(marks))


def memory_marks(panel: Panel, name: str) -> list[Mark]:
    """In megabytes, the largest first; means over the seeds."""
    sizes = [(entry, size) for entry in panel.entries if (size := entry.mean(name)) is not None]
    ordered = sorted(sizes, key=lambda each: (-each[1], each[0].method))
    return [Mark(entry.method, entry.family, name, size / 1e6, [data_size(size)]) for entry, size in ordered]
