"""Markdown tables for the docs, so that no figure in them is typed by hand.

Invariants:
    A table shows a difference of quality only if it is larger than the noise floor and Welch's limit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradwire_lab.bench.statistics import CONFIDENCE
from gradwire_lab.experiments.records import Record
from gradwire_lab.report._equal import tables as _equal_tables
from gradwire_lab.report._panels import NOISE, Panel, PanelEntry
from gradwire_lab.report._replay_table import tables
from gradwire_lab.report._results import Results
from gradwire_lab.report._trainings import gains
from gradwire_lab.report._where import facts, warnings

__all__ = ["markdown"]

_READING = (
    "Mean ± standard deviation over the seeds, at the end of training. In brackets the difference from no compression, "
    "where it is larger than the noise floor and than Welch's limit; `≈` where it is not, so that nothing can be said. "
    f"The floor is how far two means of uncompressed runs may be apart, by Student's t at {CONFIDENCE:.0%}; Welch's "
    "limit counts the spread of the method's own seeds, too, where it has two or more."
)

_EXCHANGES = (
    "Step times are medians; x is the speed-up over plain DDP on the same link, unless a note below the "
    "table says otherwise. Break-even is the bandwidth at which both cost the same. Megabytes are those of a worker's "
    "interface on the first link, headers and all."
)


def markdown(results: Results) -> dict[str, str]:
    """Write the results as Markdown by the name of their markers: "quality" and "equal" for runs, "links" for replays,
    each with the place of measurement, "speed" for runs on links, and "suites" for how many runs of suites are there.
    """
    found = {}
    if results.runs:
        runs = dataclasses.replace(results, replays=(), codecs=())
        found["quality"] = _quality(runs)
        found["equal"] = _equal(runs)
        found["speed"] = gains(results)
    if results.replays:
        found["links"] = _links(dataclasses.replace(results, runs=(), codecs=()))
    if results.coverages:
        found["suites"] = _suites(results)
    return found


def _suites(results: Results) -> str:
    """Write how many runs of each suite are there."""
    heads = ["| suite | runs that are there | of | failed |", "|---|---:|---:|---:|"]
    rows = [f"| `{each.name}` | {each.made} | {each.planned} | {each.failed} |" for each in results.coverages]
    return "\n".join([*heads, *rows]) + "\n"


def _where(results: Results) -> list[str]:
    where = "; ".join(f"{name} {value}" for name, value in facts(results) if name not in ("files", "results"))
    return [f"Measured on: {where}.", *(f"**{warning}**" for warning in warnings(results))]


def _links(results: Results) -> str:
    """Write a table for each model and number of workers."""
    lines = [*_where(results), _EXCHANGES]
    for table in tables(results):
        heads = [f"| {' | '.join(table.heads)} |", f"|---|{'---:|' * (len(table.heads) - 2)}---|"]
        rows = [f"| `{_escaped(row[0].text)}` | {' | '.join(cell.text for cell in row[1:])} |" for row in table.rows]
        lines += [f"### {table.choice}", "\n".join([*heads, *rows]), *table.notes]
    failed = [row for row in results.replays if "error" in row]
    lines += ["\n".join(["Failed:", "", *(f"- {_lost(row)}" for row in failed)])] if failed else []
    return "\n\n".join(lines) + "\n"


def _lost(row: Mapping[str, Any]) -> str:
    named = ", ".join(str(row[key]) for key in ("model", "link"))
    return f"`{_escaped(row['method'])}`, {named}, {row['workers']} workers: {_escaped(str(row['error']))}"


def _equal(results: Results) -> str:
    """Write a table for bytes, and one for time on each link, of each panel; notes that several share stand once."""
    found = list(_equal_tables(results))
    notes = dict.fromkeys(note for table in found for note in table.notes)
    lines = [*_where(results), *notes]
    for table in found:
        heads = [f"| {' | '.join(table.heads)} |", f"|---|{'---:|' * (len(table.heads) - 1)}"]
        rows = [f"| `{_escaped(row[0].text)}` | {' | '.join(cell.text for cell in row[1:])} |" for row in table.rows]
        lines += [f"### {table.choice}", "\n".join([*heads, *rows])]
    return "\n\n".join(lines) + "\n"


def _quality(results: Results) -> str:
    """Write a table for each task, with columns for each number of workers."""
    lines = [*_where(results), _READING]
    groups: dict[str, list[Panel]] = {}
    for panel in results.panels:
        groups.setdefault(_title(panel), []).append(panel)
    for title, group in groups.items():
        lines += [f"### {title}", _floors(group), "\n".join(_table(group))]
    failed = [run for run in results.runs if run.status != "ok"]
    lines += ["\n".join(["Failed:", "", *(f"- {_failure(run)}" for run in failed)])] if failed else []
    return "\n\n".join(lines) + "\n"


def _title(panel: Panel) -> str:
    """The title of a panel without its number of workers."""
    settings = dataclasses.replace(panel.settings, workers=0)
    return dataclasses.replace(panel, settings=settings).title.replace(", 0 workers", "")


def _floors(group: Iterable[Panel]) -> str:
    each = [f"{panel.settings.workers} workers: {_floor(panel)}" for panel in group]
    return f"Noise floor, {next(iter(group)).unit}: {'; '.join(each)}."


def _floor(panel: Panel) -> str:
    if not panel.baselines:
        return "not known"
    each = [(base, panel.floor(base)) for base in panel.baselines]
    found = [
        "not known" if floor is None else f"{panel.shown(floor)}, of {base.quality.count} seeds" for base, floor in each
    ]
    if len(found) == 1:
        return found[0]
    return " and ".join(f"{text} of {base.method}" for (base, _), text in zip(each, found, strict=True))


def _table(group: Sequence[Panel]) -> Iterable[str]:
    heads = [f"{panel.settings.workers} workers: {panel.unit} | seeds | bytes a step" for panel in group]
    yield f"| method | {' | '.join(heads)} |"
    yield f"|---|{'---:|---:|---:|' * len(group)}"
    cells = [{entry.method: _cells(panel, entry) for entry in panel.entries} for panel in group]
    plain = [base.method for panel in group for base in panel.baselines]
    names = dict.fromkeys(plain + sorted({name for column in cells for name in column}))
    for name in names:
        yield f"| `{_escaped(name)}` | {' | '.join(column.get(name, ' | | ') for column in cells)} |"


def _cells(panel: Panel, entry: PanelEntry) -> str:
    quality, sent = entry.quality, entry.mean("bytes_per_step")
    spread = f" ± {panel.shown(quality.deviation)}" if quality.count > 1 and not entry.diverged else ""
    volume = "" if sent is None else f"{sent:,.0f}"
    return f"{panel.shown(quality.mean)}{spread}{_judged(panel, entry)} | {quality.count} | {volume}"


def _judged(panel: Panel, entry: PanelEntry) -> str:
    verdict, difference = panel.verdict(entry), panel.difference(entry)
    if verdict == NOISE:
        return " ≈"
    return f" ({panel.shown(difference, signed=True)})" if verdict in ("better", "worse") and difference else ""


def _failure(run: Record) -> str:
    of = run.settings
    return f"`{_escaped(of.method)}`, {of.task}, {of.workers} workers, seed {of.seed}: {_escaped(run.error)}"


def _escaped(text: str) -> str:
    return " ".join(text.replace("|", r"\|").split())
