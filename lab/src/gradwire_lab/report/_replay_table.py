"""The table of replayed exchanges, for the page and for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradwire_lab.report._look import rate_text
from gradwire_lab.report._replayed_exchanges import Crossing, ReplayedExchanges, crossing, exchanges, link_text
from gradwire_lab.report._results import Results
from gradwire_lab.report._table import UNKNOWN, Cell, Table, Tone, number, words

__all__ = ["crossing_cell", "tables"]


def tables(results: Results) -> Iterable[Table]:
    """One table for each model and number of workers."""
    for found in exchanges(results):
        heads = [head for link in found.links for head in (f"{link_text(link)}, ms", f"{link_text(link)}, x")]
        rows = [_row(found, method) for method in found.methods]
        yield Table(
            found.title,
            ["method", *heads, "break-even", "MB a step", "family"],
            rows,
            found.instead(),
            ["method", *heads, "break-even"],
        )


def crossing_cell(found: Crossing | None) -> Cell:
    """The bandwidth at which a method costs as much as no compression; a bound where it lies beyond what was measured.

    >>> crossing_cell(Crossing(rate=2.5e9)).text, crossing_cell(Crossing(below=1e8)).text
    ('2.5 Gbit/s', '< 100 Mbit/s')
    """
    if found is None:
        return UNKNOWN
    if found.rate is not None:
        return Cell(rate_text(found.rate), found.rate)
    if found.above is not None:
        bound = "> loopback" if found.everywhere else f"> {rate_text(found.above)}"
        return Cell(bound, found.above, "better")
    assert found.below is not None
    return Cell(f"< {rate_text(found.below)}", found.below / 2, "worse")


def _row(found: ReplayedExchanges, method: str) -> Sequence[Cell]:
    cells = [words(method)]
    sent: float | None = None
    for link in found.links:
        row, speedup = found.rows.get((method, link)), found.speedup(method, link)
        cells.append(number(None if row is None else 1e3 * row["seconds"], "{:,.1f}"))
        cells.append(number(speedup, "{:.2f}", _tone(found, method, link)))
        sent = sent or (row or {}).get("interface_bytes") or (row or {}).get("bytes_sent")
    plain = found.baseline(found.links[0]) is found.rows.get((method, found.links[0]))
    break_even = UNKNOWN if plain else crossing_cell(crossing(found, method))
    return [*cells, break_even, number(sent and sent / 1e6, "{:,.3f}"), words(found.family(method))]


def _tone(found: ReplayedExchanges, method: str, link: str) -> Tone:
    """The tone of a cell; there is no judgement if the quartiles overlap."""
    speedup = found.speedup(method, link)
    if speedup is None or not found.apart(method, link):
        return ""
    return "better" if speedup > 1 else "worse"
