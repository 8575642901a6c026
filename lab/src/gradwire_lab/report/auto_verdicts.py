"""Verdicts on the goals of "auto": a table of the cells of ``gradwire check auto``."""

from __future__ import annotations

from collections.abc import Iterable

from gradwire_lab.experiments.auto_verdicts import BEHIND, LEAST_SHARE, Verdict, verdicts
from gradwire_lab.report._replayed_exchanges import link_text
from gradwire_lab.report._results import Results
from gradwire_lab.report._table import UNKNOWN, Cell, Table, number, words

__all__ = ["NOTE", "PLACE", "TITLE", "blocks"]

PLACE = 130
TITLE = "What auto reaches"
NOTE = (
    "Steps once auto has decided, in milliseconds; all contestants of a cell took turns in one group of workers, and "
    f"the median of the repeats counts. Goals: at most {BEHIND:g} of plain DDP's step; and of the speed of the fastest "
    f"fixed method that keeps auto's budget at least {LEAST_SHARE:g}."
)

_HEADS = ("model", "workers", "link", "computed", "DDP", "auto", "auto / DDP", "best fixed", "best / auto", "verdict")


def blocks(results: Results) -> Iterable[Table]:
    """One table of all cells."""
    found = verdicts(results.cells)
    if found:
        good = sum(each.holds for each in found)
        few = sum(each.repeats < 3 for each in found)
        notes = [f"{good} of {len(found)} hold."] + ([f"{few} have fewer than 3 repeats."] if few else [])
        yield Table("all cells", _HEADS, [_row(each) for each in found], notes, _HEADS)


def _row(found: Verdict) -> list[Cell]:
    return [
        words(found.model),
        number(found.workers, "{:d}"),
        words(part_text(found)),
        number(1e3 * found.compute, "{:g}"),
        number(1e3 * found.plain, "{:,.1f}"),
        number(1e3 * found.auto, "{:,.1f}"),
        number(found.behind, "{:.2f}", "better" if found.behind <= BEHIND else "worse"),
        UNKNOWN if found.best is None else words(found.best),
        number(found.share, "{:.2f}", "better" if (found.share or 1.0) >= LEAST_SHARE else "worse"),
        words("holds" if found.holds else "missed", "better" if found.holds else "worse"),
    ]


def part_text(found: Verdict) -> str:
    """Format the link of a verdict for people; if the link changes, name the part of the run."""
    shown = link_text(found.part)
    return shown if found.part == found.link else f"{shown}, part {found.number + 1}"
