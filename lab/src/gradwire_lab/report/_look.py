"""Looks of the plots: a colour for each family, a shape for each method in it, a grey band for noise.

Plots are Plotly's own dictionaries, without colours for paper, text and grid: the page adds those, light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire_lab.report._families import BASELINE, FAMILIES

__all__ = [
    "COLOURS",
    "Plot",
    "Spec",
    "axis",
    "band",
    "by_family",
    "elements",
    "faint",
    "hover",
    "layout",
    "legend_entries",
    "line",
    "log_axis",
    "log_ticks",
    "marker",
    "rate_text",
]

Spec = dict[str, Any]

COLOURS = {
    BASELINE: "#7d8590",
    "cast": "#3fa7d6",
    "quantisation": "#3f7fd0",
    "sparsification": "#d9622b",
    "low rank": "#179a72",
    "hybrid": "#c0609f",
    "wrapper": "#c98f0a",
    "torch's hook": "#8b6fc9",
    "other": "#a0785a",
}
"""The colours of families; they can be read on white and on black."""

_SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "triangle-down",
    "cross",
    "x",
    "pentagon",
    "hexagram",
    "triangle-left",
    "triangle-right",
    "hourglass",
    "bowtie",
    "octagon",
    "star-diamond",
    "hexagon",
)

_SIZE = 10


@dataclass(frozen=True)
class Plot:
    """One plot of a section.

    Args:
        choice: name of the plot in the section's menu.
        figure: data and layout, as Plotly has them.
        height: pixels.
        notes: lines below.
    """

    choice: str
    figure: Spec
    height: int = 560
    notes: Sequence[str] = ()


def by_family(families: Iterable[str]) -> list[str]:
    """The families that occur, in the order of the legend."""
    found = set(families)
    return [family for family in FAMILIES if family in found]


def marker(number: int, family: str) -> Spec:
    """The colour and shape for the ``number``-th method of a family."""
    plain = family == BASELINE
    symbol = "star" if plain else _SYMBOLS[number % len(_SYMBOLS)]
    return {"color": COLOURS[family], "symbol": symbol, "size": _SIZE + 5 * plain}


def faint(colour: str) -> str:
    """Make a colour translucent, for error bars.

    >>> faint("#3fa7d6")
    'rgba(63,167,214,0.4)'
    """
    parts = (str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))
    return f"rgba({','.join(parts)},0.4)"


def layout(x: Spec, y: Spec, **more: Any) -> Spec:
    """The layout that all plots share; the legend is below the plot, where a phone has room."""
    return {
        "xaxis": x,
        "yaxis": y,
        "hovermode": "closest",
        "margin": {"l": 60, "r": 16, "t": 36, "b": 56},
        "legend": {"orientation": "h", "yanchor": "top", "y": -0.16, "x": 0},
        "font": {"size": 12},
        "modebar": {
            "bgcolor": "rgba(0,0,0,0)",
            "color": "#9aa4af",
            "activecolor": "#59636e",
            "remove": ["select2d", "lasso2d", "autoScale2d"],
        },
        **more,
    }


def axis(title: str, *, reverse: bool = False, **more: Any) -> Spec:
    """Make an axis; a reversed one has small values at its upper end."""
    turned = {"autorange": "reversed"} if reverse else {}
    return {"title": {"text": title}, "automargin": True, "zeroline": False, **turned, **more}


def log_axis(title: str, values: Iterable[float], form: Callable[[float], str]) -> Spec:
    """Make a logarithmic axis for positive values, with few enough ticks for a phone.

    Args:
        title: title below the axis.
        values: values that must be on the axis.
        form: function that gives the text at a tick.
    """
    logs = [math.log10(value) for value in values]
    room = 0.06 * (max(logs) - min(logs)) or 0.15
    low, high = min(logs) - room, max(logs) + room
    ticks = log_ticks(low, high)
    return axis(title, type="log", range=[low, high], tickvals=ticks, ticktext=[form(tick) for tick in ticks])


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks at powers of ten between two limits, and at 2 and 5 times each if those are few.

    >>> log_ticks(0.9, 2.1), log_ticks(0.9, 4.1)
    ([10.0, 20.0, 50.0, 100.0], [10.0, 100.0, 1000.0, 10000.0])
    """
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [float(f"{step}e{power}") for power in powers for step in steps]
    return [tick for tick in ticks if low <= math.log10(tick) <= high]


def legend_entries(families: Iterable[str], symbols: Mapping[str, str]) -> list[Spec]:
    """Traces without points that explain colours and shapes.

    Args:
        families: families that are coloured.
        symbols: a shape for each series.
    """
    nothing: Spec = {"type": "scatter", "x": [None], "y": [None], "hoverinfo": "skip"}
    grey = {"size": 9, "color": COLOURS[BASELINE]}
    shapes = [
        {**nothing, "name": name, "mode": "markers", "marker": {**grey, "symbol": symbol}}
        for name, symbol in symbols.items()
    ]
    colours = [
        {**nothing, "name": family, "mode": "lines", "line": {"color": COLOURS[family], "width": 7}}
        for family in by_family(families)
    ]
    return shapes + colours


def band(low: float, high: float) -> Spec:
    """Draw a grey stripe across the plot, below everything else."""
    return {
        "type": "rect",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "yref": "y",
        "y0": low,
        "y1": high,
        "fillcolor": "rgba(125,133,144,0.2)",
        "line": {"width": 0},
        "layer": "below",
    }


def line(x: float) -> Spec:
    """Draw a vertical line below everything else: the value that all others are compared with."""
    return {
        "type": "line",
        "xref": "x",
        "x0": x,
        "x1": x,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": {"color": COLOURS[BASELINE], "width": 1.5, "dash": "dot"},
    }


def hover(name: str, lines: Sequence[str]) -> str:
    """The template of the text that a mark shows when it is pointed at."""
    return "<br>".join((f"<b>{name}</b>", *lines))


def rate_text(rate: float) -> str:
    """Format bits a second for people.

    >>> rate_text(1e8), rate_text(3.456e10), rate_text(2.5e12)
    ('100 Mbit/s', '34.6 Gbit/s', '2.5 Tbit/s')
    """
    unit, name = next((u, n) for u, n in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (0.0, "k")) if rate >= u)
    value = rate / (unit or 1e3)
    return f"{value:.3g} {name}bit/s"


def elements(size: int) -> str:
    """Format a number of elements, as a power of 2 if it is one.

    >>> elements(1 << 24), elements(1000)
    ('2^24 elements', '1,000 elements')
    """
    return f"2^{size.bit_length() - 1} elements" if size & (size - 1) == 0 else f"{size:,} elements"
