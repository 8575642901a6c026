"""The table of ``gradwire bench codec``, printed line by line, because a line must appear before the next row is
measured.

So the widths of the columns are fixed before the first row, and a line is as long as it is: a terminal wraps it, a file
keeps it whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gradwire_lab.bench import codec, goals
from gradwire_lab.bench.steps import STEPS

__all__ = ["goal_lines", "head", "line", "skipped_lines", "time_text"]

Row = dict[str, Any]

_OP = max(len(step.name) for step in STEPS)
_WIDTHS = {"time": 9, "ns": 7, "GB/s": 6, "triad": 5, "bits": 6}


def head(first: Row, width: int) -> list[str]:
    """The lines above the rows: where they were measured, the columns and a rule.

    Args:
        first: the first row.
        width: characters of the longest name of a method.
    """
    last = "speedup" if "speedup" in first else "busy" if "neighbours" in first else "state"
    columns = _columns("method", "size", "op", [*_WIDTHS, last], width)
    where = f"{first['machine']}; {first['threads']} threads; {first['target']}; torch {first['torch']}"
    return [where, columns, "-" * len(columns)]


def line(row: Row, width: int) -> str:
    """Format one row of the table; a skipped row shows only that it was skipped."""
    name = f"{row['implementation']} {codec.label(row)}" if "implementation" in row else codec.label(row)
    return _columns(name, str(row["size"]), row["op"], ["skipped"] if "skipped" in row else _figures(row), width)


def skipped_lines(rows: Iterable[Row]) -> list[str]:
    """One line for each method and size that was left out, with the first reason."""
    reasons: dict[tuple[str, int], str] = {}
    for row in rows:
        if "skipped" in row:
            reasons.setdefault((codec.label(row), row["size"]), f"{row['op']} {row['skipped']}")
    return [f"skipped: {method}, {size} elements: {reason}" for (method, size), reason in reasons.items()]


def goal_lines(rows: Sequence[Row]) -> list[str]:
    """Describe the operations that miss a goal, each with the reason, and count those that reach it."""
    reasons: dict[tuple[str, str, int], list[str]] = {}
    for miss in goals.misses(rows):
        reasons.setdefault((codec.label(miss.row), miss.row["op"], miss.row["size"]), []).append(miss.reason)
    missed = [f"missed: {name} {op}, {size} elements: {'; '.join(why)}" for (name, op, size), why in reasons.items()]
    count = len(goals.judged(rows))
    return [*missed, f"goals: {count - len(missed)} of {count} operations reach them"]


def _columns(method: str, size: str, op: str, figures: Sequence[str], width: int) -> str:
    widths = [*_WIDTHS.values(), 7]
    right = (f"{figure:>{room}}" for figure, room in zip(figures, widths, strict=False))
    return " ".join([f"{method:<{width}}", f"{size:>10}", f"{op:<{_OP}}", *right])


def _figures(row: Row) -> list[str]:
    bandwidth, ratio, bits = row["bytes_moved"] / row["seconds"] / 1e9, row["triad_ratio"], row["wire_bits_per_element"]
    if "speedup" in row:
        last = f"{row['speedup']:.1f}x"
    elif "neighbours" in row:
        last = f"{row['slow_down_ratio']:.2f}"
    else:
        last = f"{row['state_bytes_per_element']:.3g}"
    each = f"{goals.nanoseconds(row):.3g}"
    return [time_text(row["seconds"]), each, f"{bandwidth:.1f}", f"{ratio:.2f}", f"{bits:.3f}", last]


def time_text(seconds: float) -> str:
    """Format seconds in the unit that suits them.

    >>> time_text(2.345), time_text(0.0123), time_text(0.0000042)
    ('2.35 s', '12.30 ms', '4.2 us')
    """
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
