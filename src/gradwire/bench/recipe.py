"""How a model is trained: batch size, optimizer and learning-rate schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from gradwire.errors import require

__all__ = ["OPTIMIZERS", "Recipe"]


@dataclass(frozen=True)
class Recipe:
    """An optimizer, a linear warm-up, and a schedule of steps, or of a straight line down to zero.

    Args:
        batch: examples of a step over all workers.
        lr: peak learning rate.
        momentum: in [0, 1); 0 is plain SGD, for methods that have a momentum of their own. Adam has none of this kind.
        weight_decay: L2 coefficient; of AdamW the decoupled one.
        warmup: steps of linear warm-up, at least 1.
        drops: fractions of the run at which the learning rate falls.
        fall: what it is multiplied by then.
        linear: it falls evenly from the end of the warm-up to the end of the run instead.
        clip: largest norm of the averaged gradient, all parameters together; None: any.
        optimizer: a key of ``OPTIMIZERS``.
        betas: of Adam.
        epochs: passes over the data, where nobody says how many.

    Raises:
        ConfigError: no such optimizer.

    Example:
        >>> [round(Recipe(warmup=2).factor(step, 10), 4) for step in (0, 1, 4, 5, 8)]
        [0.5, 1.0, 1.0, 0.1, 0.01]
        >>> [round(Recipe(warmup=2, linear=True).factor(step, 10), 4) for step in (0, 1, 5, 9)]
        [0.5, 1.0, 0.5, 0.0]
    """

    batch: int = 64
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    warmup: int = 20
    drops: tuple[float, ...] = (0.5, 0.8)
    fall: float = 0.1
    linear: bool = False
    clip: float | None = None
    optimizer: str = "sgd"
    betas: tuple[float, float] = (0.9, 0.999)
    epochs: int = 10

    def __post_init__(self) -> None:
        known = ", ".join(OPTIMIZERS)
        require(self.optimizer in OPTIMIZERS, "Recipe.optimizer", f"one of {known}", self.optimizer)

    def build(self, params: Iterable[Tensor]) -> Optimizer:
        """The optimizer at the peak learning rate."""
        return OPTIMIZERS[self.optimizer](self, params)

    def factor(self, step: int, steps: int) -> float:
        """What the peak learning rate is multiplied by in ``step`` of ``steps``; for ``LambdaLR``."""
        warm = min((step + 1) / self.warmup, 1.0)
        if self.linear:
            return min(warm, (steps - 1 - step) / max(steps - self.warmup, 1))
        fallen = sum(step >= drop * steps for drop in self.drops)
        return warm * self.fall**fallen

    def clip_(self, params: Iterable[Tensor]) -> None:
        """Scale the gradients down, in place, where their norm is too large."""
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(params, self.clip)


def _sgd(recipe: Recipe, params: Iterable[Tensor]) -> Optimizer:
    nesterov = recipe.momentum > 0
    return SGD(params, recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay, nesterov=nesterov)


def _adam(recipe: Recipe, params: Iterable[Tensor]) -> Optimizer:
    return Adam(params, recipe.lr, recipe.betas, weight_decay=recipe.weight_decay)


def _adamw(recipe: Recipe, params: Iterable[Tensor]) -> Optimizer:
    return AdamW(params, recipe.lr, recipe.betas, weight_decay=recipe.weight_decay)


def _rmsprop(recipe: Recipe, params: Iterable[Tensor]) -> Optimizer:
    return RMSprop(
        params, recipe.lr, alpha=0.9, eps=1e-10, weight_decay=recipe.weight_decay, momentum=recipe.momentum,
        centered=True,
    )  # fmt: skip


OPTIMIZERS: dict[str, Callable[[Recipe, Iterable[Tensor]], Optimizer]] = {
    "sgd": _sgd, "adam": _adam, "adamw": _adamw, "rmsprop": _rmsprop,
}  # fmt: skip
"""SGD is Nesterov's, RMSprop the centered one, as in the benchmarks' originals."""
