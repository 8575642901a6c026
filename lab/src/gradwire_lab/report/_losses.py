"""Loss of every run over steps or over the seconds of training: runs of gradwire train, and those of other trainers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from gradwire_lab.report._families import BASELINE
from gradwire_lab.report._look import COLOURS, Plot, Spec, axis, layout
from gradwire_lab.report._panels import Panel
from gradwire_lab.report._results import Log, Results

__all__ = ["loss_plots"]

Over = Literal["step", "seconds"]

_TITLES = {"step": "step", "seconds": "seconds of training"}
_PALETTE = ("#3f7fd0", "#d9622b", "#179a72", "#8b6fc9", "#c0609f", "#c98f0a", "#3fa7d6", "#a0785a")
_MOST = 2000
"""Points of a line: a screen has no more."""


def loss_plots(results: Results, over: Over) -> Iterator[Plot]:
    """One plot for the runs of other trainers, and one for each panel; a line for each run."""
    logs = [log for log in results.logs if len(log.points) > 1 and getattr(log.points[0], over) is not None]
    if logs:
        traces = [_of_log(log, over, _PALETTE[number % len(_PALETTE)]) for number, log in enumerate(logs)]
        yield Plot("runs of your own", _drawn(traces, over))
    for panel in results.panels:
        found = [*_of_panel(panel, over)]
        if found:
            yield Plot(panel.title, _drawn(found, over))


def _drawn(traces: list[Spec], over: Over) -> Spec:
    return {"data": traces, "layout": layout(axis(_TITLES[over]), axis("training loss"), showlegend=True)}


def _of_log(log: Log, over: Over, colour: str) -> Spec:
    points = log.points[:: -(-len(log.points) // _MOST)]
    x, y = [getattr(point, over) for point in points], [point.loss for point in points]
    return _line(log.name, x, y, colour, 2)


def _of_panel(panel: Panel, over: Over) -> Iterator[Spec]:
    for entry in panel.entries:
        for place, run in enumerate(entry.runs):
            if len(run.history) > 1 and (entry.timed or over == "step"):
                points = run.history[:: -(-len(run.history) // _MOST)]
                x = [float(getattr(point, over)) for point in points]
                plain = entry.family == BASELINE
                line = _line(entry.method, x, [point.loss for point in points], COLOURS[entry.family], 1 + plain)
                yield line | {"legendgroup": entry.method, "showlegend": place == 0}


def _line(name: str, x: list[float], y: list[float], colour: str, width: float) -> Spec:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": [value if math.isfinite(value) else None for value in y],
        "line": {"color": colour, "width": width},
        "hoverinfo": "text",
        "hovertext": name,
    }
