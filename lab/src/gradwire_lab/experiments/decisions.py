"""Decisions of "auto" over time: the choice for each bucket, the step of the choice, and the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradwire.auto.choices import DENSE
from gradwire.engine.exchange import Exchange

__all__ = ["DecisionLog", "Entry"]

Entry = dict[str, Any]
"""``step``, ``phase`` and ``buckets``: rows of ``bucket``, ``choice``, ``exposed`` and ``dense_exposed`` (seconds),
``error`` and ``budget``."""

UNCOMPRESSED = ("watching", "probing")
"""Phases in which all steps are uncompressed."""

_KEPT = ("bucket", "elements", "choice", "exposed", "dense_exposed", "error", "budget")


class DecisionLog:
    """The decisions of a run: a new entry whenever the phase or a choice has changed.

    Example:
        >>> log = DecisionLog()
        >>> for step in (3, 4, 5):
        ...     log.add(step, {"phase": "watching" if step < 5 else "holding", "buckets": []})
        >>> [(each["step"], each["phase"]) for each in log.entries]
        [(3, 'watching'), (5, 'holding')]
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def note(self, step: int, exchange: Exchange | None) -> None:
        """Note the state of an exchange after a step; an exchange without a controller gives no entry."""
        if exchange is not None and exchange.controller is not None:
            self.add(step, exchange.controller.report())

    def add(self, step: int, report: Mapping[str, Any]) -> None:
        """Add the report of ``decisions()`` after a step, if it is new.

        Args:
            step: number of steps that were made, in ascending order.
            report: report of the controller.
        """
        buckets = [{name: row.get(name) for name in _KEPT} for row in report["buckets"]]
        if report["phase"] in UNCOMPRESSED:
            # The controller goes on reporting its last decision.
            plain = {"choice": DENSE.label, "error": None}
            buckets = [row | plain | {"exposed": row["dense_exposed"]} for row in buckets]
        entry = {"step": step, "phase": report["phase"], "buckets": buckets}
        if not self.entries or _chosen(entry) != _chosen(self.entries[-1]):
            self.entries.append(entry)


def _chosen(entry: Entry) -> tuple[str, list[str]]:
    return entry["phase"], [row["choice"] for row in entry["buckets"]]
