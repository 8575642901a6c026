"""Correction of local steps for the noise of a rank's own gradients, which a mean over the ranks would not have.

    share = |M|^2 / mean_i |w_i|^2,  M = mean_i w_i;  local step = step / sqrt(share)

Here w_i is the pseudo-gradient of rank i, the change of its parameters in a round.

Invariants:
    * share is 1 if the pseudo-gradients of all ranks are equal, and 1 / W if they have nothing in common.
    * It is measured on a sample of the pseudo-gradients before they are compressed, averaged without compression. So it
      does not depend on the method, on residuals, nor on when the mean is applied.
    * Each parameter group has a share of its own, because what one group's gradients have in common says nothing of
      another.
    * It is measured in the first rounds, in which the share changes most, and then in every ``EVERY``-th. That costs
      one all-reduce of at most ``MOST_SAMPLED`` + 1 floats for each parameter group and one more, for any number of
      elements and workers. With 1,024 elements the share is known to some 4 %; less exactly where few elements move at
      all, as of an embedding that is a group of its own.

Why:
    * Adam divides by the root of v. For the gradients of one rank v is their signal and all of their noise; for a mean
      over W ranks the noise is W times less. So where gradients are mostly noise, the pseudo-gradients w_i are as long
      as ever, and their mean M, in which the noise cancels, is up to sqrt(W) times shorter than the step of one Adam
      that sees the mean gradient.
    * The local steps are lengthened and not the mean, because with several steps in a round a longer mean overshoots
      along what the ranks agree on. The step itself is multiplied and not the learning rate, which an optimizer may
      change or limit within its step.
    * Momentum averages noise over steps, so pseudo-gradients have more in common than gradients, and this corrects less
      than the second moment alone would ask for. The whole of that, computed from share and the betas, was tried on a
      small GPT with 8 ranks and an eighth of a bit: 1.94 in place of 1.87, and with five steps in a round 2.24 in place
      of 2.04.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.engine.exchange import Exchange
from gradwire.notices import tell

__all__ = ["LocalNoise"]


FIRST, EVERY = 16, 8
"""The first rounds, which are all measured, and the rounds from one measurement to the next after them."""

MOST = 4.0
"""The largest factor; what is gained was measured up to 2.5, with 8 ranks."""

SHARE, LEAST, MOST_SAMPLED = 256, 256, 1024
"""A sample of a group has one in ``SHARE`` of its elements, but no fewer than ``LEAST`` and no more than
``MOST_SAMPLED``."""

_SAID = 1.1
"""The factor from which on the log says once what is done."""


class LocalNoise:
    """The factors by which local steps are multiplied, one for each parameter group, equal on all ranks.

    Args:
        exchange: exchange of the ranks.
        groups: elements of each parameter group in a flat tensor.
        optimizer: name of the local optimizer, for the log.
    """

    def __init__(self, exchange: Exchange, groups: Sequence[slice], optimizer: str) -> None:
        self._exchange, self._groups, self._optimizer = exchange, groups, optimizer
        self._shares: list[float | None] = [None] * len(groups)
        self._since = 0
        self._said = False

    @property
    def factors(self) -> list[float]:
        """Numbers from 1 to ``MOST``; 1 where nothing was measured."""
        return [1 / math.sqrt(min(max(share or 1.0, MOST**-2), 1.0)) for share in self._shares]

    def due(self) -> bool:
        """Return whether the round that has begun is measured."""
        t = self._exchange.step
        return self._exchange.channel.world > 1 and (t <= self._since + FIRST or t % EVERY == 0)

    @torch.no_grad()
    def measure(self, delta: Tensor) -> None:
        """Compare a sample of this rank's pseudo-gradient with the mean; all ranks must call it in the same round.

        Args:
            delta: this rank's pseudo-gradient, flat, float32.
        """
        world = self._exchange.channel.world
        samples = [self._sample(delta[span]) for span in self._groups]
        squares = torch.stack([sample.square().sum() for sample in samples])
        # A rank that left out its steps, because its gradients were not finite, has gone nowhere.
        absent = 1 - delta.any().float()
        mean = torch.cat([*samples, squares, absent[None]])
        # One message for all groups: the samples, their squares and the flag.
        self._exchange.average(mean, extra=True)
        *means, wholes, away = torch.split(mean, [*map(len, samples), len(samples), 1])
        commons = torch.stack([sample.square().sum() for sample in means])
        pairs = list(zip(commons.tolist(), wholes.tolist(), strict=True))
        # All ranks see the same numbers, so all of them leave out the measurement or none does.
        if float(away) != 0 or not all(math.isfinite(number) for pair in pairs for number in pair):
            return
        for group, (common, whole) in enumerate(pairs):
            if whole > 0:
                now, before = min(max(common / whole, 1 / world), 1.0), self._shares[group]
                self._shares[group] = now if before is None else (now + before) / 2
        self._say()

    def _sample(self, group: Tensor) -> Tensor:
        """Return elements of a group drawn at random, the same on all ranks, or all of a small group."""
        numel = group.numel()
        wanted = min(max(numel // SHARE, LEAST), MOST_SAMPLED)
        if numel <= wanted:
            return group
        # A regular choice would see one column of a matrix, or rows of one kind.
        generator = torch.Generator().manual_seed(self._exchange.step)
        drawn = torch.randint(numel, (wanted,), generator=generator, device="cpu")
        return group[drawn.to(group.device)]

    def _say(self) -> None:
        largest = max(self.factors)
        if largest >= _SAID and not self._said and self._exchange.channel.rank == 0:
            tell(
                "%s makes local steps %.3g times as long, because the noise of each rank's gradients makes their mean "
                "as much shorter; the factor follows the noise (docs/adaptive.md#more-workers)",
                self._optimizer,
                largest,
                quiet=self._exchange.quiet,
            )
            self._said = True

    def state_dict(self) -> dict[str, Any]:
        """Return numbers on which all ranks agree."""
        return {"shares": list(self._shares), "since": self._since}

    def restart(self) -> None:
        """Forget what was measured up to now, and measure all of the next rounds."""
        self._shares, self._since = [None] * len(self._shares), self._exchange.step

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict``; one of other groups, or without any, says nothing."""
        shares: Sequence[float | None] = state.get("shares", ())
        self._shares = list(shares) if len(shares) == len(self._shares) else [None] * len(self._shares)
        self._since = int(state.get("since", 0))
