"""Second moments of an inner optimizer, averaged over the ranks at intervals, uncompressed.

Invariants:
    * The mean is over the ranks that have a moment of a parameter, and all of those hold the same bits after it. A rank
      that never had a gradient of the parameter keeps none.
    * Moments that are not finite are dropped on all ranks alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwire.engine.exchange import Exchange
from gradwire.errors import Verbatim, require
from gradwire.optim._flat import FlatParameters

__all__ = ["AveragedMoments", "keeps_moments", "kinds_of"]


def keeps_moments(inner: Optimizer) -> bool:
    """Return whether an optimizer may have an ``exp_avg_sq``: for one of another package only its first step tells.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> keeps_moments(torch.optim.AdamW([weight])), keeps_moments(torch.optim.SGD([weight], lr=0.1))
    (True, False)
    """
    ours = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam)
    return isinstance(inner, ours) or not type(inner).__module__.startswith("torch.optim")


def kinds_of(inner: Optimizer) -> list[str]:
    """The names of the second moments of the optimizer."""
    amsgrad = any(group.get("amsgrad", False) for group in inner.param_groups)
    return ["exp_avg_sq", "max_exp_avg_sq"] if amsgrad else ["exp_avg_sq"]


class AveragedMoments:
    """An average of the second moments of an optimizer over the ranks.

    Args:
        params: parameters whose moments are averaged.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        self.params = list(params)
        # The last slot has a 1 for each parameter of which this rank has a moment, and one if it has any state.
        self.flat = FlatParameters(
            [*self.params, torch.empty(len(self.params) + 1, dtype=torch.float32, device=self.params[0].device)]
        )

    @torch.no_grad()
    def average(self, inner: Optimizer, exchange: Exchange) -> None:
        """Replace every moment by the mean over the ranks that have it. All must call it, between two exchanges.

        Raises:
            ConfigError: the optimizer has made steps on some rank, and keeps no second moments on any.
        """
        for kind in kinds_of(inner):
            found = [self._moment(inner, param, kind) for param in self.params]
            there = [float(moment is not None) for moment in found]
            self.flat.gather([*found, torch.tensor([*there, float(bool(inner.state))], device="cpu")])
            # All ranks see the same mean, so all of them drop it or none does.
            if bool(exchange.average(self.flat.data)):
                continue
            *means, shares = self.flat.views
            *counts, stepped = shares.mul(exchange.channel.world).round().tolist()
            none = Verbatim(f"{type(inner).__name__}, which keeps none")
            require(any(counts) or not stepped, "CompressedStep.inner", f"an optimizer with {kind}", none)
            for moment, mean, count in zip(found, means, counts, strict=True):
                if moment is not None:
                    moment.copy_(mean.mul_(exchange.channel.world / count))

    def _moment(self, inner: Optimizer, param: Tensor, kind: str) -> Tensor | None:
        moment = inner.state.get(param, {}).get(kind)
        return moment if isinstance(moment, Tensor) and moment.shape == param.shape else None
