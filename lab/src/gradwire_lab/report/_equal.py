"""Tables of quality at equal bytes and time, for the page and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from gradwire_lab.report._curves import Curve
from gradwire_lab.report._panels import Panel
from gradwire_lab.report._results import Results
from gradwire_lab.report._spent import NEAR, Spending, spendings
from gradwire_lab.report._table import UNKNOWN, Cell, Table, number, words

__all__ = ["tables"]

BY_THEN, AS_GOOD, NEARLY = "no compression by then", "as good: times less", f"within {NEAR:.0%}: times less"


def tables(results: Results) -> Iterator[Table]:
    """A table for bytes, and one for time on each link, of each panel."""
    for panel in results.panels:
        for each in spendings(panel):
            heads = ["method", panel.unit, "spent", BY_THEN, AS_GOOD, NEARLY]
            rows = [_row(panel, each, one) for one in each.curves]
            yield Table(f"{panel.title}: {each.of}", heads, rows, each.notes, heads)


def _row(panel: Panel, each: Spending, one: Curve) -> list[Cell]:
    plain, spent = each.plain(one.entry), one.x[-1]
    last = one.quality[-1]
    found = [words(one.entry.method), Cell(panel.shown(last), panel.scale * last), Cell(each.text(spent), spent)]
    if plain is None or plain is one:
        return [*found, UNKNOWN, UNKNOWN, UNKNOWN]
    by_then = each.by_then(plain, spent)
    final = plain.quality[-1]
    near = final * (1 - NEAR if panel.higher_is_better else 1 + NEAR)
    shown = UNKNOWN if by_then is None else Cell(panel.shown(by_then), panel.scale * by_then)
    return [*found, shown, *(_times(each, one, plain, goal) for goal in (final, near))]


def _times(each: Spending, one: Curve, plain: Curve, goal: float) -> Cell:
    """The factor by which a method had spent less, when it was as good as this, than no compression spends in all."""
    spent = each.when(one, goal)
    return UNKNOWN if not spent else number(plain.x[-1] / spent, "{:,.3g}")
