"""The latency of compressing and decompressing, as violins: the survey's Figure 8."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from gradwire_lab.report._codec_rows import PHASES, by_method
from gradwire_lab.report._families import family_of
from gradwire_lab.report._look import COLOURS, Plot, Spec, axis, elements, layout, legend_entries, log_axis
from gradwire_lab.report._results import Results

__all__ = ["NOTE", "PLACE", "TITLE", "blocks", "latencies"]

PLACE = 140
TITLE = "Latency of compressing and decompressing"
NOTE = (
    "One call of each together, on a tensor of the size in the menu, the fastest method first. The box in a violin "
    "holds the middle half of the calls. After Figure 8 of GRACE's survey."
)


def blocks(results: Results) -> Iterable[Plot]:
    """One plot for each size, the largest first."""
    for size in sorted({row["size"] for row in results.codecs}, reverse=True):
        found = latencies(results.codecs, size)
        if found:
            methods = {name: phases["encode"]["method"] for name, phases in _sampled(results.codecs, size).items()}
            families = {name: family_of(methods[name], methods[name]) for name in found}
            yield Plot(elements(size), _figure(found, families), 110 + 34 * len(found))


def latencies(rows: Sequence[dict[str, Any]], size: int) -> dict[str, list[float]]:
    """Milliseconds of compressing and decompressing together, a list for each method, the fastest method first.

    Args:
        rows: rows of ``gradwire_lab.bench.codec.rows``, with their samples; those that were skipped are left out. Of
            several threads, instruction sets or machines each is a method of its own.
        size: elements.
    """
    sums = {
        name: [1e3 * sum(both) for both in zip(*(phases[op]["samples"] for op in PHASES), strict=False)]
        for name, phases in _sampled(rows, size).items()
    }
    return dict(sorted(sums.items(), key=lambda item: median(item[1])))


def _sampled(rows: Sequence[dict[str, Any]], size: int) -> dict[str, dict[str, dict[str, Any]]]:
    return by_method(rows, size, "samples")


def _figure(found: dict[str, list[float]], families: dict[str, str]) -> Spec:
    violins = [_violin(name, values, COLOURS[families[name]]) for name, values in found.items()]
    x = log_axis("milliseconds", [value for values in found.values() for value in values], "{:g}".format)
    legend = {"orientation": "h", "yanchor": "bottom", "y": 1, "x": 0}
    drawn = layout(x, axis("", reverse=True), legend=legend, violinmode="overlay")
    return {"data": [*violins, *legend_entries(families.values(), {})], "layout": drawn}


def _violin(name: str, values: list[float], colour: str) -> Spec:
    return {
        "type": "violin",
        "orientation": "h",
        "name": name,
        "x": values,
        "y0": name,
        "box": {"visible": True},
        "meanline": {"visible": False},
        "points": False,
        "spanmode": "hard",
        "scalemode": "width",
        "width": 0.9,
        "line": {"color": colour, "width": 1.5},
        "showlegend": False,
    }
