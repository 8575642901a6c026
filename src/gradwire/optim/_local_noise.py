"""Correction of local steps for the noise of a rank's own gradients, which a mean over the ranks would not have.

    share = sum_i <w_i, M> / sum_i |w_i|^2;  local learning rate = lr / sqrt(share)

Law: Adam divides by the root of v, and v of one rank's gradients is their signal and all of their noise; that of a mean
over W ranks has W times less noise. So where gradients are mostly noise the ranks' ways w_i are as long as ever, and
their mean M, in which the noise cancels, is up to sqrt(W) times shorter than the way of one Adam that sees the mean
gradient. share is what is left of the square: 1 if all ranks go the same way, 1 / W if their ways have nothing in
common. The scalar product with the decoded M is right on average for every code that is, whatever noise the code adds.

Not the mean is lengthened, but the local steps: with several of them in a round a longer mean overshoots along what the
ranks agree on. Ways have more in common than gradients, because momentum averages noise over steps, so this corrects
less than the second moment alone would ask for. The whole of that, computed from share and the betas, was tried: a
small GPT on 8 ranks ended with 1.94 in place of 1.87, and with five steps in a round 2.24 in place of 2.04
(docs/adaptive.md).

It is measured in the first rounds, in which the share changes most, and then in every ``EVERY``-th, for one pass over
the parameters and a message of 8 bytes there, whatever the number of workers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from gradwire.exchange.exchange import Exchange

__all__ = ["EVERY", "FIRST", "MOST", "LocalNoise"]

log = logging.getLogger("gradwire")

FIRST, EVERY = 16, 8
"""The first rounds, which are all measured, and the rounds from one measurement to the next after them."""

MOST = 4.0
"""The largest factor; what is gained was measured up to 2.5, with 8 ranks."""

_SAID = 1.1
"""The factor from which on the log says once what is done."""


class LocalNoise:
    """The factor by which local learning rates are multiplied, equal on all ranks.

    Args:
        exchange: exchange of the ranks.
        optimizer: name of the local optimizer, for the log.
    """

    def __init__(self, exchange: Exchange, optimizer: str) -> None:
        self._exchange, self._optimizer = exchange, optimizer
        self._share: float | None = None
        self._said = False

    @property
    def factor(self) -> float:
        """From 1 to ``MOST``; 1 before it was measured."""
        least = MOST**-2
        return 1 / math.sqrt(min(max(1.0 if self._share is None else self._share, least), 1.0))

    def due(self) -> bool:
        """Return whether the round that is being exchanged is measured."""
        t = self._exchange.step
        return self._exchange.channel.world > 1 and (t <= FIRST or t % EVERY == 0)

    @torch.no_grad()
    def measure(self, ways: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Compare this rank's ways with the mean that has arrived; all ranks must call it in the same round.

        Args:
            ways: pairs of this rank's way and the mean way, one for each parameter; float32, of one shape.
        """
        parts = [torch.stack([torch.sum(own * mean), torch.sum(own * own)]) for own, mean in ways]
        sums = torch.stack(parts).sum(0)
        counters = self._exchange.counters
        dense = counters.dense_bytes
        spoilt = bool(self._exchange.average(sums))
        # It comes on top of what would be exchanged without compression.
        counters.dense_bytes = dense
        common, whole = map(float, sums.tolist())
        if spoilt or whole <= 0:
            return
        # Fewer than 1 / W of the squares are common only by the noise of the code.
        now = min(max(common / whole, 1 / self._exchange.channel.world), 1.0)
        self._share = now if self._share is None else (now + self._share) / 2
        if self.factor >= _SAID and not self._said and self._exchange.channel.rank == 0:
            log.info(
                "the ranks' steps are %.3g times as long as their mean, by the noise of their own gradients: %s makes "
                "its local steps with %.3g times its learning rates, and this factor follows the noise",
                self.factor,
                self._optimizer,
                self.factor,
            )
            self._said = True

    def state_dict(self) -> dict[str, float | None]:
        """Return numbers on which all ranks agree."""
        return {"share": self._share}

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Continue from a ``state_dict``; of none, or of another number of ranks, from nothing."""
        self._share = state.get("share")
