"""Failures: runs and exchanges that failed, workers whose parameters differ at the end, and skipped steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from gradwire_lab.experiments.records import Record
from gradwire_lab.report._results import Results
from gradwire_lab.report._table import UNKNOWN, Cell, Table, words

__all__ = ["NOTE", "PLACE", "TITLE", "blocks"]

PLACE = 150
TITLE = "What went wrong"
NOTE = (
    "Failed runs are in no other figure; those whose workers ended with different parameters are, and in tables those "
    "that diverged."
)

_HEADS = ("method", "where", "seed", "what")


def blocks(results: Results) -> Iterable[Table]:
    """One table, if there is anything to list."""
    rows = [*_runs(results), *_replays(results), *_codecs(results)]
    if rows:
        yield Table("all", _HEADS, rows, (), _HEADS)


def _runs(results: Results) -> Iterator[list[Cell]]:
    for run in results.runs:
        trouble = _trouble(run)
        if trouble:
            of = run.settings
            where = f"{of.task}, {of.model}, {of.workers} workers, link {of.link}"
            yield [words(of.method), words(where), words(str(of.seed)), words(trouble, "failed")]


def _trouble(run: Record) -> str:
    """Describe in words what went wrong in a run; empty if nothing did."""
    found = [] if run.status == "ok" else [f"failed after {run.steps} steps: {run.error or 'no reason given'}"]
    if run.status == "ok" and (run.quality is None or not math.isfinite(run.quality)):
        found.append("diverged: it ended with no quality that is a number")
    if not run.identical and run.status == "ok":
        found.append("the workers ended with different parameters")
    if run.nonfinite_steps:
        found.append(f"{run.nonfinite_steps} steps were left out: a gradient was not finite")
    return "; ".join(found)


def _replays(results: Results) -> Iterator[list[Cell]]:
    for row in results.replays:
        if "error" in row:
            where = f"replay of {row['model']}, {row['workers']} workers, link {row['link']}"
            yield [words(row["method"]), words(where), UNKNOWN, words(row["error"], "failed")]


def _codecs(results: Results) -> Iterator[list[Cell]]:
    for row in results.codecs:
        if "skipped" in row and row["op"] in ("encode", "decode"):
            where = f"{row['op']} of {row['size']:,} elements"
            yield [words(row["method"]), words(where), UNKNOWN, words(f"skipped: {row['skipped']}")]
