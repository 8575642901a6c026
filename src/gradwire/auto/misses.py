"""The factors by which the messages of a choice take another time than the model of the link says.

Invariants:
    * The link is known from uncompressed steps. If the first window of a choice differs from the model only a little,
      or no more than times differ from step to step anyway, the factor is the choice's own. From then on any further
      difference is the link's.
    * If it differs much, the link may have changed just then. Where the current steps beat uncompressed ones in either
      case, nothing has to be found out: the factor is the choice's until uncompressed steps are seen again, and then it
      is dropped. Otherwise uncompressed steps must come at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median_high

from gradwire.auto.link_cost import Wire
from gradwire.transport.collective_round import Round

__all__ = ["Misses"]

CLOSE = 1.5
"""The factor by which a choice may miss the model without a doubt, where times hardly differ from step to step."""

SURE = 3.0
"""Standard errors by which it may do so in any case."""

MOST = 3.0
"""The largest factor of a choice; the link has the rest."""


class Misses:
    """The factors of all choices, by their labels.

    Example:
        >>> misses, link = Misses(), Wire(workers=2, rate=1e6, latency=0.0, message=0.0)
        >>> misses.learn({"qsgd": ([Round("exchange", 1e6, 1e6)], 1.2)}, link, 0.0, lambda missed: False)
        >>> misses.of("qsgd"), misses.expected("eden"), misses.doubted
        (1.2, 1.2, False)
    """

    def __init__(self) -> None:
        self._factors: dict[str, float] = {}
        self._doubted: dict[str, tuple[Sequence[Round], float]] = {}
        self._unsettled: set[str] = set()

    def of(self, label: str) -> float:
        """The factor of a choice; 1 until it is known."""
        return self._factors.get(label, 1.0)

    def expected(self, label: str) -> float:
        """The factor of a choice; one that was not in use yet is taken to miss the model as much as those that were."""
        known = self._factors.values()
        return self._factors.get(label, median_high(known) if known else 1.0)

    @property
    def doubted(self) -> bool:
        """Return whether uncompressed steps must tell what missed the model of the link."""
        return bool(self._doubted)

    def learn(
        self,
        found: Mapping[str, tuple[Sequence[Round], float]],
        wire: Wire,
        unsure: float,
        better: Callable[[float], bool],
    ) -> None:
        """Take in the first window of choices.

        Args:
            found: rounds of a step by label, and the seconds that they took.
            wire: link as uncompressed steps have shown it.
            unsure: the standard error of these seconds over those of the model, as a share, >= 0.
            better: function that says whether steps as they are beat uncompressed ones, if either the choice or the
                link was mispredicted by this factor.
        """
        close = max(CLOSE, math.exp(SURE * unsure))
        for label, (rounds, taken) in found.items():
            if label in self._factors or taken <= 0:
                continue
            missed = _missed(rounds, taken, wire)
            if 1 / close < missed < close:
                self._factors[label] = less(missed, math.exp(unsure))
            elif better(missed):
                self._factors[label] = _bounded(missed)
                self._unsettled.add(label)
            else:
                self._doubted[label] = rounds, taken

    def settle(self, wire: Wire | None) -> None:
        """Uncompressed steps were seen: say of doubted choices how they did on the link as it is now.

        Args:
            wire: link as these steps show it; None: not known yet.
        """
        doubted, self._doubted = self._doubted, {}
        unsettled, self._unsettled = self._unsettled, set()
        # These factors were taken without proof, and the link is known now: the next window of the choice measures them
        # anew.
        for label in unsettled:
            del self._factors[label]
        for label, (rounds, taken) in doubted.items():
            assert wire is not None
            self._factors[label] = _bounded(_missed(rounds, taken, wire))


def _missed(rounds: Sequence[Round], taken: float, wire: Wire) -> float:
    expected = sum(wire.seconds(each) for each in rounds)
    return taken / expected if expected > 0 else 1.0


def _bounded(missed: float) -> float:
    return min(MOST, max(1 / MOST, missed))


def less(missed: float, by: float) -> float:
    """A factor nearer to 1 by another factor, >= 1: what is left when chance is taken off.

    >>> less(1.5, 1.25), less(0.5, 1.5), less(1.1, 1.25)
    (1.2, 0.75, 1.0)
    """
    return max(1.0, missed / by) if missed > 1 else min(1.0, missed * by)
