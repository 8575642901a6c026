"""Replayed exchanges in groups that may be compared: the same model, workers and pretended computation.

Invariants:
    * A method is compared with plain DDP on the same link. Where that was not replayed, it is compared with our own
      uncompressed exchange, and the report says so.
    * Rows of different threads, instructions or machines are not compared.
    * The rate at which a method stops paying is read between two links that were measured, one on which it is faster
      and one on which it is not. Beyond the measured links nothing is claimed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gradwire_lab.netlab import Link
from gradwire_lab.report._conditions import conditions
from gradwire_lab.report._families import PLAIN, family_of, named
from gradwire_lab.report._look import rate_text
from gradwire_lab.report._results import Results

__all__ = ["Crossing", "ReplayedExchanges", "crossing", "exchange_title", "exchanges", "link_text", "repeated"]

Row = dict[str, Any]

_WORDS = {"ddp": "plain DDP", "none": "none, our own exchange without compression"}


@dataclass(frozen=True)
class ReplayedExchanges:
    """Replayed exchanges that may be compared.

    Args:
        title: settings that are the same for all of it.
        links: links as text, the slowest first.
        rows: rows by method and link; the last one of those with equal settings, and none that failed.
    """

    title: str
    links: tuple[str, ...]
    rows: dict[tuple[str, str], Row]

    @property
    def methods(self) -> list[str]:
        """The methods with a row, the uncompressed ones first, then the fastest on the slowest link."""
        names = {method for method, _ in self.rows}
        return sorted(names, key=lambda name: (_rank(name), self._seconds(name), name))

    def family(self, method: str) -> str:
        """The family of a method that has a row on some link."""
        row = next(row for (name, _), row in self.rows.items() if name == method)
        return family_of(row["method"], None if row["params"] is None else row["method"].partition(":")[0])

    def baseline(self, link: str) -> Row | None:
        """The row on a link that others are compared with: plain DDP, or else our own uncompressed exchange."""
        return self.rows.get((self._plain(link) or "", link))

    def compared_with(self, link: str) -> str:
        """Say in words what the speed-ups on a link refer to, for a link that has a baseline."""
        return _WORDS[self._plain(link) or PLAIN[0]]

    def instead(self) -> list[str]:
        """A sentence that names the baseline, if it is not plain DDP on every link that has one."""
        other = [link for link in self.links if self._plain(link) not in (None, PLAIN[0])]
        if not other:
            return []
        shown = ", ".join(link_text(link) for link in other)
        return [f"Plain DDP was not replayed ({shown}): compared with {_WORDS[PLAIN[1]]}."]

    def speedup(self, method: str, link: str) -> float | None:
        """The baseline's step time over the method's; None if one of the two is missing."""
        mine, plain = self.rows.get((method, link)), self.baseline(link)
        return plain["seconds"] / mine["seconds"] if mine and plain else None

    def apart(self, method: str, link: str) -> bool:
        """Return whether the quartiles of a method and of the baseline do not overlap."""
        mine, plain = self.rows.get((method, link)), self.baseline(link)
        if not mine or not plain:
            return False
        return bool(mine["seconds_low"] > plain["seconds_high"] or mine["seconds_high"] < plain["seconds_low"])

    def _plain(self, link: str) -> str | None:
        return next((plain for plain in PLAIN if (plain, link) in self.rows), None)

    def _seconds(self, method: str) -> tuple[int, float]:
        """The sort key of a method: the slowest link on which it ran, and the step time there."""
        return next(
            (at, self.rows[method, link]["seconds"])
            for at, link in enumerate(self.links)
            if (method, link) in self.rows
        )


@dataclass(frozen=True)
class Crossing:
    """The rate at which a method stops paying.

    Args:
        rate: bits a second at which it costs as much as no compression; None: not between measured links.
        above: bits a second; it is faster still on the fastest link, and this is the highest measured rate.
        below: bits a second; it is faster at no measured rate, of which this is the slowest.
        everywhere: the fastest link was the loopback.
    """

    rate: float | None = None
    above: float | None = None
    below: float | None = None
    everywhere: bool = False


def exchanges(results: Results) -> list[ReplayedExchanges]:
    """The replayed rows that did not fail, in groups, in the order of their first rows."""
    groups: dict[str, dict[tuple[str, str], Row]] = {}
    for (title, method, link), row in _keyed(results.replays):
        groups.setdefault(title, {})[method, link] = row
    return [ReplayedExchanges(title, _slowest_first(link for _, link in rows), rows) for title, rows in groups.items()]


def repeated(rows: Iterable[Row]) -> int:
    """Count the rows not shown because a later one has the same settings and conditions."""
    keys = [key for key, _ in _keyed(rows)]
    return len(keys) - len(set(keys))


def crossing(found: ReplayedExchanges, method: str) -> Crossing | None:
    """The break-even of a method; None where it or the baseline has no link, or all links are delayed.

    Between two links the time of a step is taken for ``a + b / rate``, so that the difference of two methods is a
    straight line over ``1 / rate``; the loopback counts as infinitely fast.
    """
    differences = sorted(_differences(found, method))
    rates = [rate for rate, _ in differences if rate != math.inf]
    if not rates:
        return None
    for (slow, before), (fast, after) in pairwise(differences):
        slowness = 1 / slow + (1 / fast - 1 / slow) * before / (before - after) if before < 0 <= after else 0.0
        if slowness > 0:
            return Crossing(rate=1 / slowness)
    if min(seconds for _, seconds in differences) < 0:
        return Crossing(above=rates[-1], everywhere=differences[-1][0] == math.inf)
    return Crossing(below=rates[0])


def link_text(link: str) -> str:
    """Format a link for people.

    >>> link_text("100mbit"), link_text("2.5gbit+1ms"), link_text("none")
    ('100 Mbit/s', '2.5 Gbit/s + 1 ms', 'loopback')
    """
    parsed = _parsed(link)
    shown = "loopback" if parsed.rate is None else rate_text(parsed.rate)
    return f"{shown} + {1e3 * parsed.delay:g} ms" if parsed.delay else shown


def _differences(found: ReplayedExchanges, method: str) -> Iterable[tuple[float, float]]:
    """Bandwidth, and seconds above the baseline, for each link without a delay of its own."""
    for link in found.links:
        mine, plain, parsed = found.rows.get((method, link)), found.baseline(link), _parsed(link)
        if mine and plain and not parsed.delay:
            yield parsed.rate or math.inf, mine["seconds"] - plain["seconds"]


def _rank(method: str) -> int:
    """The sort key that puts uncompressed exchanges first."""
    return PLAIN.index(method) if method in PLAIN else len(PLAIN)


def _keyed(rows: Iterable[Row]) -> Iterator[tuple[tuple[str, str, str], Row]]:
    """Rows that did not fail, each with its group, method and link; a label with different settings is numbered."""
    shown = [row for row in rows if "seconds" in row]
    told = conditions(shown)
    numbers: dict[tuple[str, str], dict[str, int]] = {}
    for row in shown:
        title, name = ", ".join([exchange_title(row), *told(row)]), _method(row)
        known = numbers.setdefault((title, name), {})
        configured = json.dumps([row["params"], row.get("options")], sort_keys=True)
        number = known.setdefault(configured, len(known) + 1)
        yield (title, name if number == 1 else f"{name} #{number}", row["link"]), row


def exchange_title(row: Row) -> str:
    """Describe in words the settings shared by all rows that may be compared with a replayed row."""
    compute = row.get("compute")
    beside = f", {1e3 * compute:g} ms of computation" if compute else ""
    other = row.get("gradients", "normal")
    like = "" if other == "normal" else f", {other} gradients"
    return f"{row['model']}, {row['workers']} workers{beside}{like}"


def _method(row: Row) -> str:
    strategy = (row.get("options") or {}).get("strategy")
    name = named(row["method"], ours=row["params"] is not None)
    return f"{name} {strategy}" if strategy else name


def _slowest_first(links: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(links), key=_order))


def _order(link: str) -> tuple[float, float]:
    parsed = _parsed(link)
    return parsed.rate or math.inf, -parsed.delay


def _parsed(link: str) -> Link:
    rate, _, delay = link.partition("+")
    return Link.parse(rate, delay or "0ms")
