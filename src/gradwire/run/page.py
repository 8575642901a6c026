"""The page of a run: one HTML file that needs nothing else, with its curves drawn as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

__all__ = ["bytes_text", "curve", "document", "page", "percent_text", "table", "time_text", "times_text"]

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}td,th{padding:.2rem .8rem .2rem 0;text-align:left}
th{border-bottom:1px solid #999}td+td,th+th{text-align:right}svg{width:100%;height:auto}.bad{color:#b00}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}}
"""

WIDTH, HEIGHT, LEFT, LOW = 900, 220, 70, 25


def page(made: dict[str, Any], paragraph: str) -> str:
    """Make the page of a report.

    Args:
        made: result of ``report_of``.
        paragraph: its result in words.
    """
    parts = [f"<h1>gradwire {escape(made['mode'])}</h1>", f"<p>{escape(paragraph)}</p>"]
    parts += [f"<p>{escape(each)}</p>" for each in made["notes"]]
    for number, model in enumerate(made["models"], 1):
        kind = {"ddp": "DistributedDataParallel", "fsdp": "fully_shard"}[model["kind"]]
        parts.append(f"<h2>Model {number}: {kind}, {model['elements']:,} parameters, {model['ranks']} ranks</h2>")
        parts += [_before_and_after(model), _proposal(model.get("proposal")), _buckets(model)]
        parts += [curve("Seconds of a step", model["step_seconds"], zero=True)]
        parts += [_checks(model["checks"])]
    parts.append(curve("Loss, as it was given to backward", made["loss"]))
    return document(f"gradwire {made['mode']}", parts)


def document(title: str, parts: Iterable[str]) -> str:
    """Make a whole page of its parts."""
    body = "\n".join(filter(None, parts))
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Make a table of texts."""
    cells = "".join(f"<th>{escape(each)}</th>" for each in heads)
    lines = ["".join(f"<td>{escape(each)}</td>" for each in row) for row in rows]
    return f"<table><tr>{cells}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>" if lines else ""


def _before_and_after(model: dict[str, Any]) -> str:
    rows = []
    for name, key in (("uncompressed", "before"), ("compressed", "after")):
        found = model[key]
        if found["steps"]:
            sent = bytes_text(found["step_bytes_sent"])
            rows.append((name, str(found["steps"]), time_text(found["step_seconds"]), sent))
    return table(("steps", "number", "seconds of one", "bytes sent in one"), rows)


def _proposal(proposal: dict[str, Any] | None) -> str:
    if proposal is None:
        return ""
    plain, times = proposal["alone"]["dense"], {**proposal["alone"], "auto": proposal["seconds"]}
    rows = [(name, time_text(seconds), times_text(plain, seconds)) for name, seconds in times.items()]
    return "<h3>Expected</h3>" + table(("method", "a step", "than uncompressed"), rows)


def _buckets(model: dict[str, Any]) -> str:
    buckets = (model.get("proposal") or model.get("decisions") or {}).get("buckets") or []
    rows = []
    for each in buckets:
        seconds = [each["seconds"], each["dense_seconds"]]
        times = ["" if one is None else time_text(one) for one in seconds]
        rows.append((str(each["bucket"]), f"{each['elements']:,}", each["choice"], *times))
    return table(("bucket", "elements", "method", "its exchange", "uncompressed"), rows)


def _checks(checks: Sequence[dict[str, Any]]) -> str:
    if not checks:
        return ""
    rows = [
        (
            str(each["step"]),
            each["bucket"],
            each["choice"],
            f"{each['error']:.3g}",
            f"{each['expected']:.3g}",
            f"{each['cosine']:.5f}",
            "kept" if each["kept"] else "back to dense",
        )
        for each in checks
    ]
    heads = ("step", "bucket", "method", "error", "expected", "cosine", "so it is")
    return "<h3>Means that were also made exactly</h3>" + table(heads, rows)


def curve(title: str, points: Sequence[Sequence[float]], *, zero: bool = False) -> str:
    """Draw values by step as SVG; nothing where there are fewer than two.

    Args:
        title: heading.
        points: pairs of a step and a value; those that are not finite are left out.
        zero: true: the axis begins at zero.

    Example:
        >>> curve("Loss", [(1, 2.0)])
        ''
        >>> curve("Loss", [(1, 2.0), (2, 1.0)]).count("polyline")
        1
    """
    known = [(x, y) for x, y in points if abs(y) < float("inf")]
    if len(known) < 2:
        return ""
    first, last = known[0][0], known[-1][0]
    values = sorted(y for _, y in known)
    # One step in fifty may be far out, such as one with a checkpoint.
    least, most = 0.0 if zero else values[0], values[min(len(values) - 1, int(0.98 * len(values)))]
    wide, high = max(last - first, 1), max(most - least, 1e-12)

    def place(x: float, y: float) -> str:
        right = LEFT + (WIDTH - LEFT) * (x - first) / wide
        down = (HEIGHT - LOW) * (1 - min(1.0, (y - least) / high)) + 5
        return f"{right:.1f},{down:.1f}"

    line = " ".join(place(x, y) for x, y in known)
    words = [
        f'<text x="0" y="{HEIGHT - LOW + 5}">{least:.3g}</text><text x="0" y="15">{most:.3g}</text>',
        f'<text x="{LEFT}" y="{HEIGHT}">step {first:g}</text>',
        f'<text x="{WIDTH}" y="{HEIGHT}" text-anchor="end">{last:g}</text>',
    ]
    drawn = f'<polyline points="{line}" fill="none" stroke="#2a7" stroke-width="1.5"/>'
    box = f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 8}" fill="currentColor" font-size="13">'
    return f"<h3>{escape(title)}</h3>{box}{''.join(words)}{drawn}</svg>"


def percent_text(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.0f} %"


def times_text(before: float, after: float) -> str:
    """A ratio of two times in words.

    >>> times_text(3.0, 1.0), times_text(1.0, 1.25)
    ('3x faster', '1.25x slower')
    """
    ratio = before / max(after, 1e-12)
    return f"{ratio:.2g}x faster" if ratio >= 1 else f"{1 / ratio:.3g}x slower"


def time_text(seconds: float) -> str:
    """A time in words."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def bytes_text(nbytes: float) -> str:
    """A number of bytes in words."""
    return f"{nbytes / 1e6:.3g} MB"
