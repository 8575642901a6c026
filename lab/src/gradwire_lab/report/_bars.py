"""Rows of marks, one row for each method, so that forty names can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from gradwire_lab.report._look import COLOURS, Spec, axis, hover, layout, legend_entries, line

__all__ = ["Mark", "rows_figure", "rows_height"]

_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "pentagon")

_LEGEND = {"orientation": "h", "yanchor": "bottom", "y": 1, "x": 0}


@dataclass(frozen=True)
class Mark:
    """A mark in a row of the figure.

    Args:
        name: name of the row.
        family: decides the colour.
        series: one of several things that are marked in each row: it decides the shape.
        x: place of the mark on the axis.
        hover: lines that are shown when the mark is pointed at.
        low, high: ends of its error bar.
    """

    name: str
    family: str
    series: str
    x: float
    hover: Sequence[str] = ()
    low: float | None = None
    high: float | None = None


def rows_figure(
    marks: Sequence[Mark], x: Spec, at: float | None = None, symbols: Mapping[str, str] | None = None
) -> Spec:
    """A plot with a row for each name, in the order of the marks, the first at the top.

    Args:
        marks: marks of the rows, at least one.
        x: an axis.
        at: place of an upright line with which all others are compared.
        symbols: symbols of the series; None: one after the other.
    """
    names = list(dict.fromkeys(mark.name for mark in marks))
    series = list(dict.fromkeys(mark.series for mark in marks))
    shapes = {each: (symbols or {}).get(each, shape) for each, shape in zip(series, cycle(_SYMBOLS), strict=False)}
    drawn = [_trace([mark for mark in marks if mark.series == each], shapes[each]) for each in series]
    legend = legend_entries((mark.family for mark in marks), shapes if len(series) > 1 else {})
    y = axis("", categoryorder="array", categoryarray=names[::-1], type="category", range=[-0.7, len(names) - 0.3])
    figure = layout(x, y, shapes=[] if at is None else [line(at)], showlegend=True, legend=_LEGEND)
    return {"data": [*legend, *drawn], "layout": figure}


def rows_height(marks: Sequence[Mark]) -> int:
    """The height in pixels of a figure with so many rows."""
    return 170 + 24 * len({mark.name for mark in marks})


def _trace(marks: Sequence[Mark], symbol: str) -> Spec:
    colours = [COLOURS[mark.family] for mark in marks]
    up = [(mark.x if mark.high is None else mark.high) - mark.x for mark in marks]
    down = [mark.x - (mark.x if mark.low is None else mark.low) for mark in marks]
    return {
        "type": "scatter",
        "mode": "markers",
        "showlegend": False,
        "x": [mark.x for mark in marks],
        "y": [mark.name for mark in marks],
        "marker": {"symbol": symbol, "size": 9, "color": colours},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": up,
            "arrayminus": down,
            "thickness": 1,
            "width": 0,
            "color": "#9aa4af",
            "visible": any(up) or any(down),
        },
        "hovertext": [hover(mark.name, [mark.series, *mark.hover]) for mark in marks],
        "hoverinfo": "text",
    }
