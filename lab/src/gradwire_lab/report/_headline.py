"""The result in a sentence or two, above everything else."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradwire_lab.report._families import BASELINE
from gradwire_lab.report._panels import DIVERGED, NOISE, Panel, PanelEntry
from gradwire_lab.report._results import Log, Results
from gradwire_lab.report._trainings import trainings

__all__ = ["headline"]

_MOST = 4
"""Sentences at most; the sections have the rest."""


def headline(results: Results) -> list[str]:
    """Sentences that say what was gained; none where nothing can be compared.

    Args:
        results: results that were measured.
    """
    on_links = [panel for training in trainings(results) for panel in training]
    found = [*map(_faster, on_links)] or [*map(_smaller, results.panels)]
    said = [sentence for sentence in (*found, *_logs(results)) if sentence]
    left = len(said) - _MOST
    return said if left <= 0 else [*said[:_MOST], f"{left} more comparisons are below."]


def _kept(panel: Panel) -> list[PanelEntry]:
    """The methods that are not worse than no compression; where the noise is not known, by at most 1 %."""
    return [entry for entry in panel.entries if entry.family != BASELINE and _no_worse(panel, entry)]


def _no_worse(panel: Panel, entry: PanelEntry) -> bool:
    verdict, base = panel.verdict(entry), panel.compared_with(entry)
    if verdict in ("better", "worse", NOISE, DIVERGED) or base is None:
        return verdict not in ("worse", DIVERGED)
    plain, own = base.quality.mean, entry.quality.mean
    return (plain - own if panel.higher_is_better else own - plain) <= 0.01 * abs(plain)


def _where(panel: Panel) -> str:
    known = panel.settings
    link = "" if known.link == "none" else f" on {known.link}"
    return f"{known.task}, {known.model}, {known.workers} workers{link}"


def _faster(panel: Panel) -> str:
    timed = [(speed, entry) for entry in _kept(panel) if (speed := panel.relative_speed(entry)) is not None]
    if not timed:
        return ""
    speed, best = max(timed, key=lambda pair: pair[0])
    if speed < 1.05:
        return f"{_where(panel)}: no method trained faster than no compression without a loss of quality."
    return (
        f"{_where(panel)}: {best.method} trained {speed:.1f} times as fast as no compression; {_quality(panel, best)}."
    )


def _smaller(panel: Panel) -> str:
    ratios = []
    for entry in _kept(panel):
        sent, dense = entry.mean("bytes_per_step"), entry.mean("dense_bytes_per_step")
        if sent and dense:
            ratios.append((dense / sent, entry))
    if not ratios or not panel.baselines:
        return ""
    ratio, best = max(ratios, key=lambda pair: pair[0])
    return f"{_where(panel)}: {best.method} sent {ratio:,.0f} times fewer bytes; {_quality(panel, best)}."


def _quality(panel: Panel, entry: PanelEntry) -> str:
    base = panel.compared_with(entry)
    own = panel.shown(entry.quality.mean)
    if base is None or not math.isfinite(base.quality.mean):
        return f"{panel.measure} {own}"
    return (
        f"{panel.measure} {own}, and {panel.shown(base.quality.mean)} without ({panel.verdict(entry) or 'not judged'})"
    )


def _logs(results: Results) -> Iterator[str]:
    """Compare the runs of other trainers at the loss that all of them reached."""
    timed = [log for log in results.logs if log.points[-1].seconds is not None and _finite(log)]
    if len(timed) < 2:
        return
    reached = max(min(_finite(log)) for log in timed)
    times = {log.name: next(point.seconds or 0.0 for point in log.points if point.loss <= reached) for log in timed}
    fastest, slowest = min(times, key=times.__getitem__), max(times, key=times.__getitem__)
    if times[fastest] > 0:
        gained = f"{times[slowest] / times[fastest]:.1f} times as fast as {slowest}"
        yield f"A loss of {reached:.4g}, which all runs reached: {fastest} after {times[fastest]:,.4g} s, {gained}."


def _finite(log: Log) -> list[float]:
    return [point.loss for point in log.points if math.isfinite(point.loss)]
