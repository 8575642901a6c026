"""Squared norms of gradients, bucket by bucket, from which the noise of the batch follows.

Invariants:
    * What is kept are shares of the squared norm of all buckets in the same step, so a loss scale that is halved seven
      times in a row, as a ``GradScaler`` does at the beginning, changes nothing.
    * What arrives of a method that keeps values back is many steps' worth of a few elements, and says nothing about the
      mean of this step: while a bucket has such a method, its norms are those from before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gradwire.auto.step_record import StepWindow
from gradwire.engine.plan import Named

__all__ = ["GradientNorms", "names_of", "shares_of"]

SETTLED = 0.25
"""Gradients have settled when less than this share of their squared norm lies elsewhere than a window ago: in another
bucket, or in the batch's noise in place of the mean. A share has no unit, so the scale of the loss does not matter."""


def names_of(params: Sequence[Named]) -> tuple[str, ...]:
    """The names of a bucket's parameters, by which all that is known of it is kept."""
    return tuple(name for name, _ in params)


class GradientNorms:
    """The squared norms of each bucket, of the ranks' own gradients and of the mean, as shares of all buckets'.

    Attributes:
        settled: true from the window on in which gradients had hardly moved; see ``SETTLED``.
    """

    def __init__(self) -> None:
        self._norms: dict[tuple[str, ...], tuple[float, float]] = {}
        self.settled = False

    def of(self, params: Sequence[Named], unknown: float) -> tuple[float, float]:
        """The norms of a bucket's own gradients and of its mean; ``unknown`` where they were not measured."""
        return self._norms.get(names_of(params), (unknown, unknown))

    def noise(self, buckets: Iterable[Sequence[Named]], world: int) -> float:
        """The variance that sampling the batch leaves in the mean gradient of so many ranks."""
        found = [self.of(params, 0.0) for params in buckets]
        return max(0.0, sum(own - mean for own, mean in found)) / max(1, world - 1)

    def learn(self, shares: Sequence[tuple[Sequence[Named], float, float]]) -> None:
        """Take in the norms of a window.

        Args:
            shares: buckets, with the norms of their own gradients and of their exact means, as shares of all own norms.
        """
        known, moved = True, 0.0
        for params, own, mean in shares:
            key = names_of(params)
            known = known and key in self._norms
            before = self._norms.get(key, (own, mean))
            # Half of all differences is what has moved from one place to another.
            moved += (abs(mean - before[1]) + abs(own - mean - before[0] + before[1])) / 2
            self._norms[key] = ((before[0] + own) / 2, (before[1] + mean) / 2)
        self.settled = self.settled or (known and moved < SETTLED)


def shares_of(seen: StepWindow) -> list[tuple[Sequence[Named], float, float]]:
    """The norms of a window as shares of all buckets' own; empty where they are not known."""
    total = sum(seen.own)
    if not (math.isfinite(total + sum(seen.mean)) and total > 0):
        return []
    return [
        (params, own / total, mean / total) for params, own, mean in zip(seen.buckets, seen.own, seen.mean, strict=True)
    ]
