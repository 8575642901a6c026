"""Decisions of "auto" over time: its choice for each bucket, the step of the choice, and the gain it expected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

from gradwire_lab.report._look import COLOURS, Plot, Spec, axis, hover, layout
from gradwire_lab.report._replayed_exchanges import exchange_title, link_text
from gradwire_lab.report._results import Results

__all__ = ["NOTE", "PLACE", "TITLE", "blocks", "figure"]

PLACE = 140
TITLE = "Decisions of auto over time"
NOTE = (
    "Below, a row for each bucket, coloured by what it was exchanged with; above, the milliseconds of the exchange "
    "that the backward pass does not hide, as expected when it was decided. Each mark says the error of its bucket."
)

Entry = Mapping[str, Any]

_WIDTH = 14
_COLOURS = tuple(COLOURS.values())


def blocks(results: Results) -> Iterable[Plot]:
    """One plot for each run that recorded its decisions."""
    for title, entries, last in _recorded(results):
        buckets = max((len(each["buckets"]) for each in entries), default=0)
        if buckets:
            yield Plot(title, figure(entries, last), 330 + 22 * buckets)


def _recorded(results: Results) -> Iterator[tuple[str, Sequence[Entry], int]]:
    """The title of a run, its entries, and its last step if that is known."""
    for run in results.runs:
        known = run.settings
        title = f"{known.task}, {known.model}, {known.workers} workers, {link_text(known.link)}, {known.method}"
        yield f"{title}, seed {known.seed}", run.decisions, run.steps
    for row in results.replays:
        yield f"{exchange_title(row)}, {link_text(row['link'])}, {row['method']}", row.get("decisions") or (), 0
    for row in results.cells:
        links = " to ".join(link_text(part["link"]) for part in row["parts"])
        computed = f", {1e3 * row['compute']:g} ms computed" if row["compute"] else ""
        title = f"{row['model']}, {row['workers']} workers{computed}, {links}, repeat {row['repeat'] + 1}"
        yield title, row["decisions"], 0


def figure(entries: Sequence[Entry], last: int) -> Spec:
    """A plot of the entries of a ``DecisionLog``.

    Args:
        entries: entries of the log, at least one with buckets.
        last: the step at which the run ended; 0: not known.
    """
    ends = [*(each["step"] for each in entries[1:]), max(last, entries[-1]["step"] + 1)]
    labels = dict.fromkeys(bucket["choice"] for each in entries for bucket in each["buckets"])
    colours = dict(zip(sorted(labels, key=lambda label: (label != "dense", label)), cycle(_COLOURS), strict=False))
    bars = [_bars(entries, ends, label, colour) for label, colour in colours.items()]
    drawn = [("dense_exposed", "not hidden, uncompressed", "dot"), ("exposed", "not hidden", "solid")]
    # Nothing was measured in a run that repeats the decisions of another.
    known = any(bucket.get("exposed") is not None for each in entries for bucket in each["buckets"])
    lines = [_line(entries, ends, *each) for each in drawn if known]
    buckets = axis("bucket", reverse=True, dtick=1, domain=[0, 0.6])
    above = axis("ms", domain=[0.68, 1], rangemode="tozero")
    times = {"yaxis2": above} if known else {}
    return {"data": [*bars, *lines], "layout": layout(axis("step"), buckets, **times, showlegend=True)}


def _bars(entries: Sequence[Entry], ends: Sequence[int], label: str, colour: str) -> Spec:
    """Draw the stretches of steps in which a bucket was exchanged with one choice."""
    x: list[int | None] = []
    y: list[int | None] = []
    said: list[str] = []
    for entry, end in zip(entries, ends, strict=True):
        for number, bucket in enumerate(entry["buckets"]):
            if bucket["choice"] == label:
                x += [entry["step"], end, None]
                y += [number, number, None]
                said += [hover(label, _about(entry, number, bucket))] * 3
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": label,
        "x": x,
        "y": y,
        "line": {"width": _WIDTH, "color": colour},
        "marker": {"size": 4, "color": colour},
        "hovertext": said,
        "hoverinfo": "text",
    }


def _about(entry: Entry, number: int, bucket: Mapping[str, Any]) -> list[str]:
    told = [f"bucket {number}, from step {entry['step']} on, {entry.get('phase', '')}".rstrip(", ")]
    if bucket.get("exposed") is not None and bucket.get("dense_exposed") is not None:
        told.append(f"{1e3 * bucket['exposed']:.3g} ms not hidden, uncompressed {1e3 * bucket['dense_exposed']:.3g} ms")
    if bucket.get("error") is not None and bucket.get("budget") is not None:
        told.append(f"error {bucket['error']:.2g} of {bucket['budget']:.2g}")
    return told


def _line(entries: Sequence[Entry], ends: Sequence[int], key: str, name: str, dash: str) -> Spec:
    """Draw the sum over the buckets, from entry to entry."""
    sums = [1e3 * sum(bucket.get(key) or 0.0 for bucket in each["buckets"]) for each in entries]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [*(each["step"] for each in entries), ends[-1]],
        "y": [*sums, sums[-1]],
        "yaxis": "y2",
        "line": {"shape": "hv", "dash": dash, "color": COLOURS["no compression"] if dash == "dot" else _COLOURS[2]},
    }
