"""Elements that all plots of trained quality share: the axis, the grey stripe of noise, and the text of a dot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from gradwire_lab.report._look import Plot, Spec, axis
from gradwire_lab.report._panels import Panel, PanelEntry
from gradwire_lab.report._results import Results
from gradwire_lab.report._scatter import Dot, scatter

__all__ = ["data_size", "dot", "facts", "panel_plots", "stripe"]

_UNITS = ("B", "kB", "MB", "GB", "TB")


def dot(panel: Panel, entry: PanelEntry, x: float, dx: float = 0.0, tail: float | None = None) -> Dot | None:
    """The dot of a method at its quality; None if that is not a number, or if x is None."""
    quality = entry.quality
    if not (math.isfinite(quality.mean) and math.isfinite(x)):
        return None
    dy = panel.scale * quality.deviation
    return Dot(entry.method, entry.family, x, panel.scale * quality.mean, facts(panel, entry), dx, dy, tail)


def panel_plots(
    results: Results, dots: Callable[[Panel], Sequence[Dot]], x: Callable[[Sequence[Dot]], Spec]
) -> Iterator[Plot]:
    """A plot of quality for each panel that has at least two dots."""
    for panel in results.panels:
        found = dots(panel)
        if len(found) > 1:
            lower = not panel.higher_is_better
            yield Plot(panel.title, scatter(found, x(found), axis(panel.unit), stripe(panel), lower=lower))


def stripe(panel: Panel) -> tuple[float, float] | None:
    """The noise floor around the uncompressed quality, as drawn; None if it is not known."""
    floor = panel.floor()
    if panel.baseline is None or floor is None:
        return None
    middle = panel.baseline.quality.mean
    return panel.scale * (middle - floor), panel.scale * (middle + floor)


def facts(panel: Panel, entry: PanelEntry) -> list[str]:
    """The text that a dot shows when it is pointed at."""
    quality, difference, relative = entry.quality, panel.difference(entry), panel.relative_speed(entry)
    seeds = f"{quality.count} seed{'s' * (quality.count != 1)}"
    lines = [f"{panel.unit}: {panel.shown(quality.mean)} ± {panel.shown(quality.deviation)}, {seeds}"]
    if difference is not None and entry is not panel.compared_with(entry):
        lines.append(f"difference: {panel.shown(difference, signed=True)}, {panel.verdict(entry)}")
    if relative is not None:
        lines.append(f"throughput: {relative:.2f} of no compression")
    packed, unpacked = entry.mean("bytes_per_step"), entry.mean("unpacked_bytes_per_step")
    if packed is not None:
        more = "" if unpacked is None else f", {data_size(unpacked)} unpacked"
        lines.append(f"a step: {data_size(packed)}{more}")
    return lines


def data_size(count: float) -> str:
    """Format bytes for people.

    >>> data_size(950), data_size(76104), data_size(1.5e9)
    ('950 B', '76.1 kB', '1.5 GB')
    """
    power = min(int(math.log10(max(count, 1) * 1.0005)) // 3, len(_UNITS) - 1)
    return f"{count / 1000**power:.3g} {_UNITS[power]}"
