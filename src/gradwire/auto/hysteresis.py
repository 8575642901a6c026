"""Margins: how much better something must be, and how different, before ``auto`` changes its mind."""

from __future__ import annotations

import math

from gradwire.auto.step_record import StepWindow

__all__ = ["CHANGE", "MARGIN", "Setback", "alike", "margin", "unchanged"]

MARGIN = 0.03
"""The share of a step that a first change must save at least, and that must be exposed before anything is tried."""

LARGEST_MARGIN = 0.15
"""The share of a step that is worth a change however unsteady steps are."""

SMALL_GAIN = 1.5
"""The gain below which uncompressed steps are made anew: they may have become as much faster by themselves since they
were seen, as at the beginning of a run."""

VERIFIED_AFTER = 64
"""Steps from a decision until that is done, each time twice as many."""

CHANGE = 0.08
"""The share of a step that another change must save while the link is as it was: what is predicted of methods that are
not in use is less exact than that."""

STEADY = 0.25
"""A link whose rate differs by less than this share has not changed; nor by fewer standard errors than ``SURE``."""

SURE = 3.0


def margin(seen: StepWindow, least: float = MARGIN) -> float:
    """Return the share of a step that a change must save: what is less than the standard error of a step's time may be
    chance, and a change back and forth costs more than it gains.

    Args:
        seen: the steps from which it is predicted.
        least: the share where all steps take equally long.
    """
    return max(least, min(LARGEST_MARGIN, seen.unsteady))


def alike(uncertain: float) -> float:
    """The factor up to which two rates are taken to be the same.

    Args:
        uncertain: the standard error of the rate, as a share.

    >>> alike(0.0), round(alike(0.2), 3)
    (1.25, 1.822)
    """
    return max(1 + STEADY, math.exp(SURE * uncertain))


def unchanged(seen: StepWindow, known: StepWindow, faster: float) -> bool:
    """Return whether uncompressed steps wait for the exchange no more than they did when nothing was to be gained, and
    not for a larger part of a step that has become shorter.

    Args:
        known: those steps.
        faster: the rate of the link over what it was then.
    """
    if [*seen.buckets] != [*known.buckets]:
        return False
    factor = alike(seen.uncertain)
    same = 1 / factor < faster < factor and seen.exposed < factor * known.exposed
    same = same and known.period < factor * seen.period
    return same or seen.exposed < MARGIN * seen.period


class Setback:
    """The last time that steps with methods turned out slower than uncompressed ones. Nothing is tried for a while
    then, each time for twice as long. A small gain is doubted after a while, each time after twice as long.

    Args:
        period: uncompressed steps of which there are twice as many before the second try, and so on.
    """

    def __init__(self, period: int) -> None:
        self._period = period
        self._rate: float | None = None
        self._slow: float | None = None
        self._patience = 1
        self._after, self._at = VERIFIED_AFTER, math.inf

    def decided(self, step: int) -> None:
        """Note that methods are in use from a step on."""
        self._at = step + self._after

    def doubts(self, step: int, seen: StepWindow, dense: StepWindow) -> bool:
        """Return whether a gain is so small, and so long ago, that uncompressed steps are to be seen anew; once.

        Args:
            step: number of the present step.
            seen: steps with methods.
            dense: uncompressed steps as they were seen last.
        """
        if step < self._at or SMALL_GAIN * seen.period <= dense.period:
            return False
        self._after, self._at = 2 * self._after, math.inf
        return True

    def note(self, rate: float, seconds: float) -> None:
        """Note that steps of so many seconds were given up for uncompressed ones, at this rate of the link."""
        self._rate, self._patience, self._slow = rate, 2 * self._patience, seconds

    def compare(self, seconds: float) -> None:
        """Forget it if uncompressed steps, which take so long, are no faster: not the methods were slow, but a rank,
        which is as slow without them.
        """
        if self._slow is not None and seconds > (1 - MARGIN) * self._slow:
            self._rate, self._patience = None, self._patience // 2
        self._slow = None

    def forbids(self, rate: float, watched: int) -> bool:
        """Return whether nothing is to be tried now: the link is as it was, and too few steps were watched since."""
        same = self._rate is not None and abs(rate / self._rate - 1) < STEADY
        return same and not self.expired(watched)

    def expired(self, watched: int) -> bool:
        """Return whether enough uncompressed steps have been seen since then; false where there was no setback."""
        return self._rate is not None and watched >= self._patience * self._period
