"""Every trained method in a table: quality with its spread over the seeds, what it sends, keeps and costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from gradwire_lab.bench.statistics import CONFIDENCE
from gradwire_lab.experiments.records import Record
from gradwire_lab.report._memory import growth_note
from gradwire_lab.report._panels import DIVERGED, NOISE, Panel, PanelEntry, no_floor
from gradwire_lab.report._results import Results
from gradwire_lab.report._table import UNKNOWN, Cell, Table, Tone, bytes_cell, number, words

__all__ = ["NOTE", "PLACE", "TITLE", "blocks", "floor_note", "verdict_cell"]

PLACE = 10
TITLE = "All methods"
NOTE = (
    "Quality at the end of training, mean ± standard deviation over the seeds, and its change from no compression. "
    "Times as fast is throughput over that of no compression; growth of memory is the most that a worker held, less "
    "what it held when the run began. A click on a head sorts."
)

_HEADS = (
    "method",
    "quality",
    "± of seeds",
    "seeds",
    "change",
    "verdict",
    "times as fast",
    "milliseconds a step",
    "bytes a step",
    "share of uncompressed",
    "bytes a step, unpacked",
    "bytes a step at the interface",
    "bytes kept between steps",
    "growth of memory, MB",
    "family",
)
_BRIEF = ("method", "quality", "± of seeds", "change", "verdict", "times as fast", "bytes a step")
_TONES: dict[str, Tone] = {NOISE: "noise", "better": "better", "worse": "worse", DIVERGED: "failed"}


def blocks(results: Results) -> Iterable[Table]:
    """One table for each panel; a column of which nothing is known is left out."""
    for panel in results.panels:
        heads = [panel.unit if head == "quality" else head for head in (*_HEADS, *_others(panel))]
        rows = [(*_row(panel, entry), *_measured(panel, entry)) for entry in panel.entries]
        kept = [column for column in range(len(heads)) if any(row[column] is not UNKNOWN for row in rows)]
        shown = [heads[at] for at in kept]
        brief = [head for head in (panel.unit if each == "quality" else each for each in _BRIEF) if head in shown]
        notes = [*floor_note(panel), *_unlearned(panel), *growth_note(panel)]
        yield Table(panel.title, shown, [[row[at] for at in kept] for row in rows], notes, brief)


def floor_note(panel: Panel) -> list[str]:
    """Describe the noise floor in words: its size and how it was computed, or why it is not known. There is one line
    for each recipe that has uncompressed runs.
    """
    if not panel.baselines:
        return ["There is no uncompressed run, so that nothing says what a difference means."]
    return [_floor_line(panel, base) for base in panel.baselines]


def _floor_line(panel: Panel, base: PanelEntry) -> str:
    quality, floor = base.quality, panel.floor(base)
    name = "Noise floor" if len(panel.baselines) == 1 else f"Noise floor of {base.method} and what has its recipe"
    if floor is None:
        return f"{name}: not known, {no_floor(base)}."
    return (
        f"{name}: {panel.shown(floor)} ({panel.unit}), by Student's t at {CONFIDENCE:.0%}, from {quality.count} "
        f"uncompressed seeds of standard deviation {panel.shown(quality.deviation)}: t·s·√(1/n + 1/m) for the "
        f"difference of means of n uncompressed and m other runs. A difference below it is none; nor is one below "
        f"Welch's limit at {CONFIDENCE:.0%}, t·√(s²/n + r²/m) with the method's own standard deviation r, where it has "
        f"two seeds or more."
    )


def verdict_cell(panel: Panel, entry: PanelEntry) -> Cell:
    """Make a cell with the verdict in words and its tone."""
    verdict = panel.verdict(entry)
    return words(verdict, _TONES.get(verdict, ""))


def _row(panel: Panel, entry: PanelEntry) -> Sequence[Cell]:
    quality, difference, dense = entry.quality, panel.difference(entry), entry.mean("dense_bytes_per_step")
    packed, step, peak = entry.mean("bytes_per_step"), entry.step, entry.growth
    own = entry is panel.compared_with(entry)
    other = None if own or difference is None else panel.shown(difference, signed=True)
    return (
        words(entry.method),
        UNKNOWN if entry.diverged else Cell(panel.shown(quality.mean), panel.scale * quality.mean),
        Cell(panel.shown(quality.deviation), panel.scale * quality.deviation)
        if quality.count > 1 and not entry.diverged
        else UNKNOWN,
        number(quality.count, "{}"),
        UNKNOWN if other is None else Cell(other, panel.scale * (difference or 0.0)),
        verdict_cell(panel, entry),
        number(panel.relative_speed(entry), "{:.2f}"),
        number(None if step is None else 1e3 * step.mean, "{:.1f}"),
        bytes_cell(packed),
        number(packed / dense if packed is not None and dense else None, "{:.2%}"),
        bytes_cell(entry.mean("unpacked_bytes_per_step")),
        bytes_cell(entry.mean("interface_bytes_per_step")),
        bytes_cell(entry.mean("state_bytes")),
        number(None if peak is None else peak / 1e6, "{:,.0f}"),
        words(entry.family),
    )


def _others(panel: Panel) -> list[str]:
    """The measures of the task other than its quality."""
    names = dict.fromkeys(name for entry in panel.entries for run in entry.runs for name in run.measures)
    return [name for name in names if name != panel.measure]


def _measured(panel: Panel, entry: PanelEntry) -> Iterator[Cell]:
    for name in _others(panel):
        found = entry.over(_measure(name))
        yield number(None if found is None else found.mean, "{:.4g}")


def _measure(name: str) -> Callable[[Record], float | None]:
    return lambda run: run.measures.get(name)


def _unlearned(panel: Panel) -> list[str]:
    """The value of the measure without any training."""
    known = panel.entries[0].runs[0].baselines
    shown = ", ".join(f"{name} {panel.shown(value)}" for name, value in known.items())
    return [f"Without learning: {shown} ({panel.unit})."] if shown else []
