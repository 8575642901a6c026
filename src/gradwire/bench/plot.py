"""The latency of every method as violins, on one interactive page: the survey's Figure 8, on this machine."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gradwire.bench.codec import label
from gradwire.errors import ConfigError

__all__ = ["latencies", "write_violins"]

_PHASES = ("encode", "decode")
_COLOUR = "#3b6ea5"


def latencies(rows: Sequence[dict[str, Any]], size: int) -> dict[str, list[float]]:
    """Milliseconds of compressing and decompressing together, a list for each method, the fastest method first.

    Args:
        rows: of ``gradwire.bench.codec.rows``, with their samples; those that were skipped are left out.
        size: elements.
    """
    samples: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row["size"] == size and row["op"] in _PHASES and "samples" in row:
            samples.setdefault(label(row), {})[row["op"]] = row["samples"]
    whole = {name: phases for name, phases in samples.items() if len(phases) == len(_PHASES)}
    sums = {
        name: [1e3 * (there + back) for there, back in zip(phases["encode"], phases["decode"], strict=False)]
        for name, phases in whole.items()
    }
    return dict(sorted(sums.items(), key=lambda item: median(item[1])))


def write_violins(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write one page with a violin for each method; the size is chosen from a menu on the page.

    Args:
        rows: of ``gradwire.bench.codec.rows``, with their samples.
        path: of an HTML file that needs nothing else, no network either.

    Raises:
        ConfigError: Plotly is not installed, or nothing was measured.

    Source:
        H. Xu et al., "GRACE: A Compressed Communication Framework for Distributed Machine Learning", ICDCS 2021,
        Figure 8.
    """
    by_size = {size: latencies(rows, size) for size in sorted({row["size"] for row in rows})}
    by_size = {size: found for size, found in by_size.items() if found}
    if not by_size:
        raise ConfigError("nothing to plot: every row was skipped")
    violins = [(size, name, values) for size, found in by_size.items() for name, values in found.items()]
    first = next(row for row in rows if "samples" in row)
    where = f"{first['machine']}; {first['threads']} threads; gradwire {first['gradwire']}"
    sizes, shown = list(by_size), max(by_size)
    menu = [_choice(size, [each == size for each, _, _ in violins], where) for size in sizes]
    figure = _plotly().Figure(
        [_violin(name, values, visible=size == shown) for size, name, values in violins],
        layout={
            "title": {"text": _title(shown, where)}, "showlegend": False, "template": "plotly_white",
            "height": 140 + 34 * max(len(found) for found in by_size.values()),
            "xaxis": {"type": "log", "title": {"text": "compress and decompress, milliseconds"}},
            "yaxis": {"autorange": "reversed", "automargin": True},
            "updatemenus": [{"buttons": menu, "active": sizes.index(shown), "x": 1, "xanchor": "right", "y": 1.08}],
        },
    )  # fmt: skip
    figure.write_html(path, include_plotlyjs=True)


def _plotly() -> Any:
    try:
        return importlib.import_module("plotly.graph_objects")
    except ModuleNotFoundError:
        raise ConfigError("plots need plotly, which is not installed: pip install 'gradwire[bench]'") from None


def _violin(name: str, values: list[float], *, visible: bool) -> dict[str, Any]:
    return {
        "type": "violin", "orientation": "h", "name": name, "x": values, "y0": name, "visible": visible,
        "box": {"visible": True}, "meanline": {"visible": False}, "points": False, "spanmode": "hard",
        "line": {"color": _COLOUR}, "scalemode": "width", "width": 0.9,
    }  # fmt: skip


def _choice(size: int, visible: list[bool], where: str) -> dict[str, Any]:
    changes = [{"visible": visible}, {"title.text": _title(size, where)}]
    return {"label": _elements(size), "method": "update", "args": changes}


def _title(size: int, where: str) -> str:
    return f"{_elements(size)}<br><sub>{where}</sub>"


def _elements(size: int) -> str:
    """As a power of 2 where it is one.

    >>> _elements(1 << 24), _elements(1000)
    ('2^24 elements', '1,000 elements')
    """
    return f"2^{size.bit_length() - 1} elements" if size & (size - 1) == 0 else f"{size:,} elements"
