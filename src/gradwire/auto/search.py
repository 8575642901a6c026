"""Search for the candidates of all buckets that make a step shortest, if that is worth a change.

Invariants:
    A first change must save ``MARGIN`` of a step. Another one, while the link is as it was, must save ``CHANGE``. Both
    must save more where steps take such different times that less may be chance (``hysteresis.margin``). Choices that
    do not keep the budget any more are left at any price.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.auto.choices import DENSE, Choice, ErrorBudget
from gradwire.auto.decide import Stage, best
from gradwire.auto.gradient_norms import names_of
from gradwire.auto.hysteresis import CHANGE, MARGIN, alike, margin
from gradwire.auto.step_model import StepModel
from gradwire.auto.step_record import StepWindow

__all__ = ["Proposal", "Search"]


@dataclass(frozen=True)
class Proposal:
    """Choices that are better than those in use.

    Args:
        seen: window for which they were chosen.
        chosen: choice of each of its buckets.
        stages: predictions that speak for them.
        weights: method with which weights are gathered; None: as without ``auto``.
    """

    seen: StepWindow
    chosen: Sequence[Choice]
    stages: Sequence[Stage]
    weights: str | None = None

    @property
    def plain(self) -> bool:
        """Return whether nothing is compressed."""
        return self.weights is None and not self.methods

    @property
    def methods(self) -> dict[tuple[str, ...], Choice]:
        """The choice of each bucket that has a method, by the names of its parameters."""
        pairs = zip(self.seen.buckets, self.chosen, strict=True)
        return {names_of(params): each for params, each in pairs if not each.dense}


class Search:
    """The search for better choices.

    Args:
        model: model of the steps.
        budget: error that choices may add.
    """

    def __init__(self, model: StepModel, budget: ErrorBudget) -> None:
        self._model, self._budget = model, budget
        self._rate: float | None = None

    def best(self, seen: StepWindow) -> Proposal:
        """Return what makes the steps of a window shortest: uncompressed, unless that is shorter by the margin.

        Args:
            seen: the last window, of which the model has learned; the link must be known.
        """
        model = self._model
        ways = [self._with_weights(seen, each) for each in model.ways_of_weights if model.knows_weights(seen, each)]
        found, seconds = ways[0], self._seconds(ways[0])
        for way in ways[1:]:
            # Weights in fewer bits are worth a change of their own.
            if self._seconds(way) < (1 - MARGIN) * seconds:
                found = way
        if self._seconds(found) > (1 - margin(seen)) * model.uncompressed(seen):
            return Proposal(seen, [DENSE] * len(found.chosen), model.stages(seen, None))
        return found

    def _with_weights(self, seen: StepWindow, weights: str | None) -> Proposal:
        """The choices with which a step is shortest, where weights are gathered with a method."""
        model = self._model
        stages = model.stages(seen, weights)
        found = [model.candidates[i] for i in best(stages, self._budget.variance, model.rest(seen), seen.buffers)]
        return Proposal(seen, found, stages, weights)

    def _seconds(self, found: Proposal) -> float:
        return self._model.predicted(found.chosen, found.seen, found.stages, found.weights)

    def better(self, seen: StepWindow) -> Proposal | None:
        """Return what is better than the choices in use, by more than the margin; None: nothing is.

        Args:
            seen: the last window, of which the model has learned.
        """
        model, wire = self._model, self._model.link.wire
        if wire is None:
            return None
        proposal = self.best(seen)
        now = Proposal(
            seen, [model.choice(params) for params in seen.buckets], model.stages(seen, model.weights), model.weights
        )
        if proposal.chosen == now.chosen and proposal.weights == now.weights:
            return None
        least = margin(seen, CHANGE if self._steady(wire.rate, seen) and not now.plain else MARGIN)
        # Choices whose error has grown too large are left at any price.
        keeps = self._keeps_budget(now.stages, now.chosen)
        longest = (1 - least) * self._seconds(now) if keeps else math.inf
        if self._seconds(proposal) > longest:
            return None
        self._rate = wire.rate
        return proposal

    def _steady(self, rate: float, seen: StepWindow) -> bool:
        """Return whether the link is as it was when something was chosen last."""
        factor = alike(seen.uncertain)
        return self._rate is not None and 1 / factor < rate / self._rate < factor

    def _keeps_budget(self, stages: Sequence[Stage], chosen: Sequence[Choice]) -> bool:
        """Return whether these choices may go on: their errors are known, and hardly above the budget."""
        options = self._model.options(stages, chosen)
        errors = sum(math.inf if option is None else option.error for option in options)
        return math.isfinite(errors) and errors <= 1.25 * self._budget.variance
