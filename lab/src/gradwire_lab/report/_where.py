"""Places, times and versions of the measurements, and warnings about what must not be compared because of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gradwire_lab.report import _codec_rows, _replayed_exchanges
from gradwire_lab.report._panels import Panel, no_floor
from gradwire_lab.report._results import Results

__all__ = ["facts", "warnings"]

_SHOWN = ("machine", "commit", "gradwire", "torch", "python", "threads", "target")
_SAME = {"machine": "machines", "commit": "commits", "torch": "versions of torch", "gradwire": "versions of gradwire"}
_LENGTH = 12


def facts(results: Results) -> list[tuple[str, str]]:
    """Names and values of the facts, with as many values as occurred."""
    found = [(name, ", ".join(_values(_environments(results), name))) for name in _SHOWN]
    dates = sorted(run.started[:16].replace("T", " ") for run in results.runs if run.started)
    seeds = sorted({run.settings.seed for run in results.runs})
    found += [
        ("results", _counts(results)),
        ("seeds", ", ".join(map(str, seeds))),
        ("dates", " to ".join(dict.fromkeys((dates[0], dates[-1]))) + " UTC" if dates else ""),
        ("suites", ", ".join(map(str, results.coverages))),
        ("files", ", ".join(results.files)),
    ]
    return [(name, value) for name, value in found if value]


def warnings(results: Results) -> list[str]:
    """Warnings as sentences; none if all was measured in one place by one program and compares well."""
    return [*_partial(results), *_mixed(results), *_unmeasured(results)]


def _partial(results: Results) -> Iterator[str]:
    """Warn of suites of which not all runs are there."""
    parts = [str(each) for each in results.coverages if each.made < each.planned]
    if parts:
        yield f"Not all is there yet: {'; '.join(parts)}."


def _mixed(results: Results) -> Iterator[str]:
    environments = list(_environments(results))
    for name, plural in _SAME.items():
        values = _values(environments, name)
        if len(values) > 1:
            yield f"Results of {len(values)} {plural} are mixed: {', '.join(values)}. Times do not compare across them."
    if any(value.endswith("-dirty") for value in _values(environments, "commit")):
        yield "Some results are of a tree with changes that no commit has."


def _unmeasured(results: Results) -> Iterator[str]:
    lone = [panel.title for panel in results.panels if not panel.baselines]
    if lone:
        yield f"Without an uncompressed run there is nothing to compare with: {'; '.join(lone)}."
    yield from _recipes(results.panels)
    yield from _floors(results.panels)
    mixed = [panel.title for panel in results.panels if len(_digests(panel)) > 1]
    if mixed:
        yield f"Runs were made on data with different digests: what they measured does not compare: {'; '.join(mixed)}."
    if any("seconds" in row and "samples" not in row for row in results.codecs):
        yield "Codec rows without samples have no violin: measure with 'gradwire bench codec --samples'."
    untimed = sum(run.environment.get("jobs", 1) > 1 for run in results.runs)
    if untimed:
        yield f"{untimed} runs were made beside others: they have no times here."
    codecs = _codec_rows.repeated(results.codecs)
    if codecs:
        yield f"{codecs} codec rows were measured again later, under equal conditions: the last counts."
    exchanges = _replayed_exchanges.repeated(results.replays)
    if exchanges:
        yield f"{exchanges} exchanges were replayed again later, with equal settings: the last counts."
    if results.replaced:
        yield f"{results.replaced} runs were repeated later with equal settings: the last that did not fail counts."


def _recipes(found: Iterable[Panel]) -> Iterator[str]:
    """Warn of several recipes in one panel, and of methods for which it has no uncompressed run."""
    for panel in found:
        if len(panel.baselines) > 1:
            yield (
                "Uncompressed runs have several recipes, or several ways to distribute the model; of those that are "
                "distributed like it, a method is compared with those of its own recipe, or else of the task's own: "
                f"{panel.title}."
            )
        alone = [entry.method for entry in panel.entries if panel.compared_with(entry) is None]
        if panel.baselines and alone:
            yield (
                "No uncompressed run whose model is distributed in the same way has the recipe of these methods or the "
                f"task's own, so that they have nothing to compare with: {', '.join(alone)} ({panel.title})."
            )


def _floors(found: Iterable[Panel]) -> Iterator[str]:
    """Warn of groups of uncompressed runs that give no noise floor, or a wide one."""
    groups = [
        (panel.title if len(panel.baselines) == 1 else f"{panel.title}, {base.method}", base)
        for panel in found
        for base in panel.baselines
    ]
    diverged = [name for name, base in groups if base.diverged]
    if diverged:
        yield f"An uncompressed run diverged, so that nothing compares with it: {'; '.join(diverged)}."
    single = [name for name, base in groups if base.quality.count == 1 and not base.diverged]
    if single:
        yield f"A noise floor needs two seeds without compression: {'; '.join(single)}."
    alike = [name for name, base in groups if base.quality.count > 1 and not base.quality.deviation]
    if alike:
        yield (
            "All seeds without compression ended at exactly the same quality, as happens with few test data, so that "
            f"the noise floor is not known: {'; '.join(alike)}."
        )
    pair = [name for name, base in groups if base.quality.count == 2 and no_floor(base) == ""]
    if pair:
        yield f"Of two seeds a noise floor is 12.7 standard deviations wide, of three 3.5: {'; '.join(pair)}."


def _digests(panel: Panel) -> set[str]:
    """The digests of the data of the runs, as far as they are known."""
    return {run.data_digest for entry in panel.entries for run in entry.runs if run.data_digest is not None}


def _environments(results: Results) -> Iterator[Mapping[str, Any]]:
    yield from (run.environment for run in results.runs)
    yield from results.replays
    yield from results.codecs
    yield from results.cells


def _values(environments: Iterable[Mapping[str, Any]], name: str) -> list[str]:
    """The different values in the order of their first occurrence; a commit is shortened."""
    found = dict.fromkeys(str(each[name]) for each in environments if each.get(name) is not None)
    return [_cut(value) if name == "commit" else value for value in found]


def _cut(commit: str) -> str:
    hexadecimal, dash, rest = commit.partition("-")
    return hexadecimal[:_LENGTH] + dash + rest


def _counts(results: Results) -> str:
    kinds = {
        "training runs": len(results.runs),
        "replayed exchanges": len(results.replays),
        "codec rows": len(results.codecs),
        "cells": len(results.cells),
    }
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
