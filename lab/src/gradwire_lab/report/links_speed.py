"""Gain of training on each link: examples a second, and the quality over wall time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import count

from gradwire_lab.report._curves import curve
from gradwire_lab.report._families import BASELINE
from gradwire_lab.report._look import COLOURS, Plot, Spec, axis, layout
from gradwire_lab.report._panels import Panel, PanelEntry
from gradwire_lab.report._results import Results
from gradwire_lab.report._trainings import timed, trainings

__all__ = ["NOTE", "PLACE", "TITLE", "blocks"]

PLACE = 5
TITLE = "What training gains on each link"
NOTE = (
    "Left: examples a second of all workers, evaluations left out; right: the quality over the time of training. "
    "Uncompressed training is grey."
)

HEIGHT = 300
"""Pixels for each link."""

ROOM = 0.16
"""The share of the height between all links."""

_PALETTE = ("#3f7fd0", "#d9622b", "#179a72", "#8b6fc9", "#c0609f", "#c98f0a", "#3fa7d6", "#a0785a")


def blocks(results: Results) -> Iterable[Plot]:
    """One plot for each training that was made on links."""
    for panels in trainings(results):
        first = panels[0].settings
        name = f"{first.task}, {first.model}, {first.workers} workers"
        yield Plot(name, drawn(panels), HEIGHT * len(panels) + 60)


def drawn(panels: Sequence[Panel]) -> Spec:
    """Draw a row for each link: bars on the left, curves on the right; a method has one colour everywhere."""
    names = list(dict.fromkeys(entry.method for panel in panels for entry in timed(panel)))
    plain = {entry.method for panel in panels for entry in panel.entries if entry.family == BASELINE}
    others = iter(_PALETTE[number % len(_PALETTE)] for number in count())
    colours = {name: COLOURS[BASELINE] if name in plain else next(others) for name in names}
    data: list[Spec] = []
    shown = layout({}, {}, showlegend=False)
    del shown["xaxis"], shown["yaxis"]
    room = ROOM / max(1, len(panels) - 1)
    tall = (1 - room * (len(panels) - 1)) / len(panels)
    for row, panel in enumerate(panels):
        top = 1 - row * (tall + room)
        left, right = _name(2 * row + 1), _name(2 * row + 2)
        entries = sorted(timed(panel), key=lambda entry: names.index(entry.method), reverse=True)
        data.append(_bars(entries, colours, left))
        data += [_curve(panel, entry, colours[entry.method], right) for entry in reversed(entries)]
        domain = [max(0.0, top - tall), top]
        speed = axis("examples a second", domain=[0.0, 0.36], anchor=f"y{left}", rangemode="tozero")
        shown |= {f"xaxis{left}": speed, f"yaxis{left}": {"domain": domain, "anchor": f"x{left}", "automargin": True}}
        shown[f"xaxis{right}"] = axis("seconds of training", domain=[0.52, 1.0], anchor=f"y{right}", rangemode="tozero")
        shown[f"yaxis{right}"] = axis(panel.unit, domain=domain, anchor=f"x{right}")
        shown.setdefault("annotations", []).append(_title(panel, top))
    return {"data": data, "layout": shown}


def _name(number: int) -> str:
    """Return the number that Plotly adds to the name of an axis; the first has none."""
    return "" if number == 1 else str(number)


def _title(panel: Panel, top: float) -> Spec:
    text = f"<b>{panel.settings.link}</b>"
    return {"text": text, "xref": "paper", "yref": "paper", "x": 0, "y": top, "yanchor": "bottom", "showarrow": False}


def _bars(entries: Sequence[PanelEntry], colours: dict[str, str], name: str) -> Spec:
    speeds = [entry.speed.mean if entry.speed is not None else math.nan for entry in entries]
    plain = next((speed for entry, speed in zip(entries, speeds, strict=True) if entry.family == BASELINE), 0.0)
    gains = [f"{speed:.0f}" + (f", {speed / plain:.1f}x" if plain and speed != plain else "") for speed in speeds]
    return {
        "type": "bar",
        "orientation": "h",
        "x": speeds,
        "y": [entry.method for entry in entries],
        "text": gains,
        "textposition": "auto",
        "marker": {"color": [colours[entry.method] for entry in entries]},
        "hoverinfo": "text",
        "xaxis": f"x{name}",
        "yaxis": f"y{name}",
    }


def _curve(panel: Panel, entry: PanelEntry, colour: str, name: str) -> Spec:
    found = curve(entry, "seconds")
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": entry.method,
        "x": list(found.x),
        "y": [panel.scale * each if math.isfinite(each) else None for each in found.quality],
        "line": {"color": colour, "width": 3 if entry.family == BASELINE else 2},
        "marker": {"size": 6},
        "hovertext": entry.method,
        "hoverinfo": "text",
        "xaxis": f"x{name}",
        "yaxis": f"y{name}",
    }
