"""Bytes and time that training has spent by the end of each epoch: time on a link is measured there, or modelled.

Invariants:
    A run over the loopback had no link, so its time on a link is a model, and is called so wherever it is shown. After
    n steps that sent b bytes

        t = n (L + C + 2 (W - 1) alpha) + b / beta

    with the model's alpha and beta of ``gradwire.auto.link_cost``. L is what a step takes beside the exchange: the
    smallest of the panel's runs of the same recipe, because a disturbance only adds to it. C is the smallest encoding
    and decoding time of the method's own runs. Nothing overlaps, and each step has one exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gradwire.transport.collective_round import Round
from gradwire_lab.experiments.records import Record
from gradwire_lab.netlab import Link
from gradwire_lab.report._curves import Curve, curve
from gradwire_lab.report._look import rate_text
from gradwire_lab.report._panels import Panel, PanelEntry
from gradwire_lab.report._quality import data_size

__all__ = ["NEAR", "Spending", "duration", "spendings"]

LINKS = ("100mbit", "1gbit")
"""The links that runs over the loopback are shown on."""

NEAR = 0.01
"""A quality within so much of another one, relative to it, is near."""

_MODELLED = (
    "Modelled, not measured: these runs exchanged over the loopback. A step is assumed to take {local} beside its "
    "exchange, which is the least of the runs with a recipe, plus the least time that the method's own runs took to "
    "encode and to decode, plus one exchange whose messages have a latency of {latency:.0f} microseconds, plus its "
    "bytes over the link; nothing overlaps."
)
_CONCURRENT = (
    "Some of the runs were made beside others, so their steps took too long, and gains look smaller than they are."
)
_LEFT_OUT = "Left out of {title}: {each}. Nothing is compared with what is left out."


@dataclass(frozen=True)
class Spending:
    """The amounts that each method of a panel had spent when an epoch ended.

    Args:
        panel: panel of the runs.
        of: bytes, or time on a link.
        title: title of an axis.
        text: an amount for people.
        curves: quality over the mean that was spent, one for each method of which it is known, all of equal length.
        notes: way in which it was found, if not by measuring, and which methods have no curve, with the reason.
    """

    panel: Panel
    of: str
    title: str
    text: Callable[[float], str]
    curves: Sequence[Curve]
    notes: Sequence[str] = ()

    @cached_property
    def by_method(self) -> Mapping[str, Curve]:
        """The curves by the names of their methods."""
        return {each.entry.method: each for each in self.curves}

    def plain(self, entry: PanelEntry) -> Curve | None:
        """The curve that a method is compared with."""
        base = self.panel.compared_with(entry)
        return None if base is None else self.by_method.get(base.method)

    def when(self, of: Curve, quality: float) -> float | None:
        """Compute what a method had spent when it first was as good as this, on straight lines between epochs, or at
        the end of its first epoch; None if it never was.
        """
        sign = 1.0 if self.panel.higher_is_better else -1.0
        good = [sign * (reached - quality) >= 0 for reached in of.quality]
        if not any(good):
            return None
        at = good.index(True)
        if at == 0:
            return of.x[0]
        share = (quality - of.quality[at - 1]) / (of.quality[at] - of.quality[at - 1])
        return of.x[at - 1] + (of.x[at] - of.x[at - 1]) * share

    def by_then(self, of: Curve, spent: float) -> float | None:
        """The quality of a method when it had spent so much, on straight lines between epochs, or at its end; None
        before its first epoch ended.
        """
        if spent < of.x[0]:
            return None
        after = next((at for at, x in enumerate(of.x) if x > spent), None)
        if after is None:
            return of.quality[-1]
        share = (spent - of.x[after - 1]) / (of.x[after] - of.x[after - 1])
        return of.quality[after - 1] + (of.quality[after] - of.quality[after - 1]) * share


def spendings(panel: Panel) -> list[Spending]:
    """Bytes, and time on links, of a panel of several methods, if it is known what one of them spent."""
    found = [_spending(panel, "bytes", "sent by a worker", data_size, _bytes)]
    if panel.settings.link != "none":
        link = panel.settings.link
        found.append(_spending(panel, f"time, {link}", f"seconds of training on {link}, measured", duration, _seconds))
    elif panel.settings.workers > 1:
        found += [_modelled(panel, Link.parse(link)) for link in LINKS]
    return [each for each in found if each is not None]


def duration(seconds: float) -> str:
    """Format a time for people.

    >>> duration(0.25), duration(90), duration(5400)
    ('0.25 s', '90 s', '1.5 h')
    """
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 3600 else f"{seconds / 3600:.3g} h"


Spent = Callable[[PanelEntry, Record], Sequence[float] | None]


def _spending(
    panel: Panel, of: str, title: str, text: Callable[[float], str], spent: Spent, notes: Sequence[str] = ()
) -> Spending | None:
    """The curves of a panel, and a note about those left out; None if there is nothing to compare or to tell."""
    amounts = {entry.method: _amounts(entry, spent) for entry in panel.entries}
    if len(amounts) < 2 or not any(amounts.values()):
        return None
    longest = max(len(run.history) for entry in panel.entries for run in entry.runs)
    reasons = {entry.method: _reason(entry, amounts[entry.method], longest) for entry in panel.entries}
    curves = [
        Curve(
            entry, [sum(at) / len(at) for at in zip(*amounts[entry.method], strict=True)], curve(entry, "epoch").quality
        )
        for entry in panel.entries
        if reasons[entry.method] is None
    ]
    out = ", ".join(f"{method} ({reason})" for method, reason in reasons.items() if reason is not None)
    left = [_LEFT_OUT.format(title=panel.title, each=out)] if out else []
    return Spending(panel, of, title, text, curves, [*notes, *left])


def _amounts(entry: PanelEntry, spent: Spent) -> list[Sequence[float]]:
    """Collect what each run had spent by the end of each epoch; empty if it is not known of one, or is nothing."""
    known = [one for run in entry.runs if (one := spent(entry, run))]
    # A worker alone sends nothing.
    return known if len(known) == len(entry.runs) and all(one[0] > 0 for one in known) else []


def _reason(entry: PanelEntry, amounts: Sequence[Sequence[float]], longest: int) -> str | None:
    """Say why a method has no curve; None if it has one."""
    fewest = min(len(run.history) for run in entry.runs)
    if entry.diverged:
        return "diverged"
    if not fewest:
        return "a run without a history"
    if not amounts:
        return "what it spent is not known, or nothing"
    # Its last point would not be the end that the others' last points are.
    return f"a run with {fewest} of {longest} epochs" if fewest < longest else None


def _bytes(_: PanelEntry, run: Record) -> Sequence[float]:
    return [point.bytes_sent for point in run.history]


def _seconds(entry: PanelEntry, run: Record) -> Sequence[float] | None:
    return [point.seconds for point in run.history] if entry.timed else None


def _modelled(panel: Panel, link: Link) -> Spending | None:
    wire = link.wire(panel.settings.workers)
    local = _local(panel)

    def spent(entry: PanelEntry, run: Record) -> Sequence[float] | None:
        here, codec = local.get(_recipe(entry)), _codec(entry, local)
        if here is None or codec is None:
            return None
        alpha = wire.alpha(Round("all_reduce", 1.0, 1.0))
        return [point.step * (here + codec + alpha) + point.bytes_sent / wire.rate for point in run.history]

    of = rate_text(float(link.rate or 0))
    notes = []
    if local:
        each = " or ".join(dict.fromkeys(f"{1e3 * seconds:.0f} ms" for seconds in local.values()))
        notes.append(_MODELLED.format(local=each, latency=1e6 * wire.latency))
        notes += [] if all(entry.timed for entry in panel.entries) else [_CONCURRENT]
    title = f"time of training on {of}, modelled"
    return _spending(panel, f"time, {of}, modelled", title, duration, spent, notes)


_EXCHANGE = ("compress", "communicate", "decompress")


def _recipe(entry: PanelEntry) -> str:
    """Name what a step computes: the recipe without its learning rate, which costs no time."""
    return repr(sorted((name, value) for name, value in entry.runs[0].settings.recipe.items() if name != "lr"))


def _local(panel: Panel) -> dict[str, float]:
    """The seconds of a step beside its exchange, by the recipe."""
    found: dict[str, float] = {}
    for entry in panel.entries:
        if entry.runs[0].settings.hook is not None:
            continue  # torch's own hooks do not say what they exchange.
        for run in entry.runs:
            if all(name in run.seconds for name in ("step", *_EXCHANGE)):
                beside = max(0.0, run.seconds["step"] - sum(run.seconds[name] for name in _EXCHANGE))
                found[_recipe(entry)] = min(found.get(_recipe(entry), beside), beside)
    return found


def _codec(entry: PanelEntry, local: Mapping[str, float]) -> float | None:
    """The seconds of encoding and decoding; of a hook of torch what its step takes longer than computing does."""
    if entry.runs[0].settings.hook is not None:
        beside = local.get(_recipe(entry))
        steps = [run.seconds["step"] for run in entry.runs if "step" in run.seconds]
        return None if beside is None or not steps else max(0.0, min(steps) - beside)
    own = [
        run.seconds["compress"] + run.seconds["decompress"]
        for run in entry.runs
        if "compress" in run.seconds and "decompress" in run.seconds
    ]
    return min(own) if own else None
