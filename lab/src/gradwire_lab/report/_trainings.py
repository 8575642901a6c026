"""Trainings that were made on several links, and the table of what each method gains there."""

from __future__ import annotations

import json
from dataclasses import replace

from gradwire_lab.report._families import BASELINE
from gradwire_lab.report._panels import Panel, PanelEntry
from gradwire_lab.report._results import Results

__all__ = ["gains", "timed", "trainings"]


def trainings(results: Results) -> list[list[Panel]]:
    """The panels of each training that was made on links, by the link."""
    groups: dict[str, list[Panel]] = {}
    for panel in results.panels:
        if panel.settings.link != "none" and len(timed(panel)) > 1:
            same = replace(panel.settings, link="none")
            key = json.dumps([getattr(same, name) for name in ("task", "model", "data", "workers", "epochs", "device")])
            groups.setdefault(key, []).append(panel)
    return [*groups.values()]


def timed(panel: Panel) -> list[PanelEntry]:
    """The methods whose speed is known."""
    return [entry for entry in panel.entries if entry.speed is not None]


def gains(results: Results) -> str:
    """Write a Markdown table of the seconds of an uncompressed step, and how many times as fast each method trained."""
    panels = [panel for training in trainings(results) for panel in training]
    names = list(dict.fromkeys(e.method for panel in panels for e in timed(panel) if e.family != BASELINE))
    lines = [f"| training | link | a step of DDP | {' | '.join(names)} |", f"|---|---|---:|{'---:|' * len(names)}"]
    for panel in panels:
        entries = {entry.method: entry for entry in timed(panel)}
        plain = next((entry for entry in entries.values() if entry.family == BASELINE), None)
        step = plain.step if plain is not None else None
        found = [panel.relative_speed(entries[name]) if name in entries else None for name in names]
        cells = [f"{each:.1f}x" if each is not None else "" for each in found]
        took = f"{1e3 * step.mean:,.0f} ms" if step is not None else ""
        lines.append(f"| {panel.settings.model} | {panel.settings.link} | {took} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
