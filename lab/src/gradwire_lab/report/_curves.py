"""Quality while training goes on: a line for each method, the mean over its seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gradwire_lab.report._families import BASELINE
from gradwire_lab.report._look import COLOURS, Plot, Spec, axis, by_family, hover, layout
from gradwire_lab.report._panels import Panel, PanelEntry
from gradwire_lab.report._results import Results

__all__ = ["Curve", "curve", "curve_plots", "drawn"]

Over = Literal["epoch", "seconds"]

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

_NAMED = 12
"""Most lines that have their own place in the legend; of more, each family has one."""

_LEGEND = {"orientation": "h", "yanchor": "top", "y": -0.16, "x": 0, "font": {"size": 11}}


@dataclass(frozen=True)
class Curve:
    """Means over the seeds for each epoch, up to the last epoch that every seed reached."""

    entry: PanelEntry
    x: Sequence[float]
    quality: Sequence[float]


def curve(entry: PanelEntry, over: Over) -> Curve:
    """The means of a method's runs at the end of each epoch."""
    epochs = list(zip(*(run.history for run in entry.runs), strict=False))
    x = [sum(getattr(point, over) for point in points) / len(points) for points in epochs]
    return Curve(entry, x, [sum(point.quality for point in points) / len(points) for points in epochs])


def curve_plots(results: Results, over: Over, title: str) -> Iterator[Plot]:
    """One plot for each panel in which a run has a history of two epochs or more."""
    for panel in results.panels:
        found = [curve(entry, over) for entry in panel.entries if entry.timed or over == "epoch"]
        found = [each for each in found if len(each.x) > 1]
        if found:
            steps = 1 + _longest(found) // 12
            x = axis(title, tick0=0, dtick=steps) if over == "epoch" else axis(title)
            yield Plot(panel.title, drawn(panel, found, x))


def drawn(panel: Panel, curves: Sequence[Curve], x: Spec) -> Spec:
    """Draw the curves of a panel over an axis; the uncompressed one comes last, above the others."""
    whole = len(curves) <= _NAMED
    data = []
    for family in reversed(by_family(each.entry.family for each in curves)):
        mine = [each for each in curves if each.entry.family == family]
        data += [_trace(panel, each, number, named=whole) for number, each in enumerate(mine)]
    y = axis(panel.unit)
    return {"data": data, "layout": layout(x, y, legend={**_LEGEND, "traceorder": "reversed"})}


def _trace(panel: Panel, drawn: Curve, number: int, *, named: bool) -> Spec:
    """Draw one curve; the legend has its name, or its family once."""
    entry, plain = drawn.entry, drawn.entry.family == BASELINE
    y = [panel.scale * quality if math.isfinite(quality) else None for quality in drawn.quality]
    says = [hover(entry.method, [f"epoch {at}: {panel.shown(q)}"]) for at, q in enumerate(drawn.quality, 1)]
    legend = (
        {"name": entry.method}
        if named
        else {"name": entry.family, "legendgroup": entry.family, "showlegend": number == 0}
    )
    dash = "solid" if plain or not named else _DASHES[number % len(_DASHES)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        **legend,
        "x": drawn.x,
        "y": y,
        "marker": {"size": 5},
        "line": {"color": COLOURS[entry.family], "width": 4 if plain else 1.3, "dash": dash},
        "hovertext": says,
        "hoverinfo": "text",
    }


def _longest(curves: Sequence[Curve]) -> int:
    return max(len(each.x) for each in curves)
