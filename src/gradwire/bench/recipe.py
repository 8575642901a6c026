"""How a model is trained: batch size, optimizer and learning-rate schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor
from torch.optim import SGD

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """SGD with Nesterov momentum, a linear warm-up, and a step schedule.

    Args:
        batch: examples of a step over all workers.
        lr: peak learning rate.
        momentum: in [0, 1); 0 is plain SGD, for methods that have a momentum of their own.
        weight_decay: L2 coefficient.
        warmup: steps of linear warm-up.
        drops: fractions of the run at which the learning rate falls by 10.

    Example:
        >>> [round(Recipe(warmup=2).factor(step, 10), 4) for step in (0, 1, 4, 5, 8)]
        [0.5, 1.0, 1.0, 0.1, 0.01]
    """

    batch: int = 64
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    warmup: int = 20
    drops: tuple[float, ...] = (0.5, 0.8)

    def optimizer(self, params: Iterable[Tensor]) -> SGD:
        """The optimizer at the peak learning rate."""
        nesterov = self.momentum > 0
        return SGD(params, self.lr, self.momentum, weight_decay=self.weight_decay, nesterov=nesterov)

    def factor(self, step: int, steps: int) -> float:
        """What the peak learning rate is multiplied by in ``step`` of ``steps``; for ``LambdaLR``."""
        fallen = sum(step >= drop * steps for drop in self.drops)
        return min((step + 1) / self.warmup, 1.0) * 0.1**fallen
