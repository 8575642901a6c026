"""Dots with names beside them, coloured by family: one for each method.

Invariants:
    All points are drawn. A second view, chosen by a button, shows the better three quarters at a larger scale; names
    are placed for each view separately.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire_lab.report._families import BASELINE
from gradwire_lab.report._labels import place
from gradwire_lab.report._look import COLOURS, Spec, band, by_family, faint, hover, layout, marker

__all__ = ["Dot", "near", "scatter"]

Range = tuple[float, float]


@dataclass(frozen=True)
class Dot:
    """A method in a plot.

    Args:
        name: label beside the dot.
        family: decides the colour.
        x, y: place of the dot.
        hover: lines that are shown when the dot is pointed at.
        dx, dy: half the length of its error bars.
        tail: another x, to which a thin line leads; None: there is none.
    """

    name: str
    family: str
    x: float
    y: float
    hover: Sequence[str] = ()
    dx: float = 0.0
    dy: float = 0.0
    tail: float | None = None


def scatter(dots: Sequence[Dot], x: Spec, y: Spec, stripe: Range | None = None, *, lower: bool = False) -> Spec:
    """Draw a scatter plot.

    Args:
        dots: dots to draw, at least one, at finite places.
        x: an axis, linear, or logarithmic with a range.
        y: a linear axis.
        stripe: stripe of noise, in units of y.
        lower: the smallest y is the best.
    """
    ordered = [dot for family in by_family(each.family for each in dots) for dot in dots if dot.family == family]
    log = x.get("type") == "log"
    across = tuple(x["range"]) if log else _padded([dot.x for dot in ordered])
    heights = [dot.y for dot in ordered]
    views = {"all": _padded(heights), "near the best": near(heights, lower=lower)}
    ranges = {name: down for name, down in views.items() if down is not None}
    texts = {name: _texts(ordered, across, down, log=log) for name, down in ranges.items()}
    return {
        "data": [*_tails(ordered), *(_trace(dots, text) for dots, text in _split(ordered, texts["all"]))],
        "layout": layout(
            {**x, "range": across},
            {**y, "range": ranges["all"]},
            shapes=[] if stripe is None else [band(*stripe)],
            updatemenus=[_buttons(ordered, ranges, texts)] if len(ranges) > 1 else [],
        ),
    }


def near(values: Sequence[float], *, lower: bool) -> Range | None:
    """A range that shows the better three quarters of the dots; None if it would span half of the whole range or more.

    >>> near([0.1, 0.97, 0.98, 0.99], lower=False) is None, near([1.0, 2.0, 3.0, 4.0], lower=False) is None
    (False, True)
    """
    better = sorted(values, reverse=not lower)[: math.ceil(0.75 * len(values))]
    (low, high), (least, most) = _padded(better), _padded(values)
    return (low, high) if high - low < 0.5 * (most - least) else None


def _padded(values: Sequence[float]) -> Range:
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


Text = tuple[str, str]
"""A label, empty where it has no place, and its place."""


def _texts(dots: Sequence[Dot], across: Range, down: Range, *, log: bool) -> list[Text]:
    """The labels of the dots in a view; the method without compression chooses its place first."""
    shares = [
        (
            ((math.log10(dot.x) if log else dot.x) - across[0]) / (across[1] - across[0]),
            (down[1] - dot.y) / (down[1] - down[0]),
        )
        for dot in dots
    ]
    places = place([dot.name for dot in dots], shares)
    return [(dot.name if where else "", where or "top center") for dot, where in zip(dots, places, strict=True)]


def _split(dots: Sequence[Dot], texts: Sequence[Text]) -> list[tuple[list[Dot], list[Text]]]:
    """The dots by family, in the order that the dots have."""
    groups: dict[str, tuple[list[Dot], list[Text]]] = {}
    for dot, text in zip(dots, texts, strict=True):
        mine = groups.setdefault(dot.family, ([], []))
        mine[0].append(dot)
        mine[1].append(text)
    return list(groups.values())


def _trace(dots: Sequence[Dot], texts: Sequence[Text]) -> Spec:
    family = dots[0].family
    markers = [marker(number, family) for number in range(len(dots))]
    bars = {"type": "data", "thickness": 1, "width": 0, "color": faint(COLOURS[family])}
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": family,
        "legendgroup": family,
        "x": [dot.x for dot in dots],
        "y": [dot.y for dot in dots],
        "text": [name for name, _ in texts],
        "textposition": [where for _, where in texts],
        "textfont": {"size": 11, "color": COLOURS[family]},
        "marker": {key: [each[key] for each in markers] for key in ("symbol", "size", "color")} | {"opacity": 0.95},
        "hovertext": [hover(dot.name, dot.hover) for dot in dots],
        "hoverinfo": "text",
        "error_x": {**bars, "array": [dot.dx for dot in dots]},
        "error_y": {**bars, "array": [dot.dy for dot in dots]},
    }


def _tails(dots: Sequence[Dot]) -> list[Spec]:
    """A thin line with a ring at its end, for each family whose dots have a second value."""
    found: list[Spec] = []
    for family in by_family(dot.family for dot in dots if dot.tail is not None):
        mine = [dot for dot in dots if dot.family == family and dot.tail is not None]
        found.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "legendgroup": family,
                "showlegend": False,
                "opacity": 0.6,
                "x": [x for dot in mine for x in (dot.x, dot.tail, None)],
                "y": [y for dot in mine for y in (dot.y, dot.y, None)],
                "marker": {"symbol": "circle-open", "size": [0, 7, 0] * len(mine), "color": COLOURS[family]},
                "line": {"width": 1, "color": COLOURS[family]},
                "hoverinfo": "skip",
            }
        )
    return found


def _buttons(dots: Sequence[Dot], ranges: dict[str, Range], texts: dict[str, list[Text]]) -> Spec:
    """Buttons that change the visible range, and the labels of every trace that has some."""
    first = len(_tails(dots))
    buttons = []
    for name, down in ranges.items():
        split = [text for _, text in _split(dots, texts[name])]
        changed = {
            "text": [[label for label, _ in text] for text in split],
            "textposition": [[where for _, where in text] for text in split],
        }
        which = list(range(first, first + len(split)))
        buttons.append({"label": name, "method": "update", "args": [changed, {"yaxis.range": list(down)}, which]})
    return {
        "type": "buttons",
        "direction": "right",
        "buttons": buttons,
        "showactive": True,
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "bottom",
        "pad": {"b": 6},
        "font": {"size": 11, "color": COLOURS[BASELINE]},
        "bgcolor": "rgba(125,133,144,0.12)",
        "bordercolor": faint(COLOURS[BASELINE]),
    }
