"""Recipe of training: batch size, optimizer, learning-rate schedule, and the precision of a step."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from gradwire.errors import is_int, require
from gradwire.optim.local.muon_adamw import MuonAdamW

__all__ = ["OPTIMIZERS", "Params", "Recipe"]

Params = Iterable[Tensor] | Iterable[tuple[str, Tensor]]
"""Arguments of torch's optimizers: parameters, or pairs of their names and them."""


@dataclass(frozen=True)
class Recipe:
    """An optimizer, a linear warm-up, and a schedule: steps, a straight line down to zero, or a cosine.

    Args:
        batch: examples of a step over all workers, at least 1.
        micro: examples of one pass of a worker, whose gradients are added up until its share of the batch is done, at
            least 1: fewer need less memory and more time. None: the whole share at once.
        lr: peak learning rate, at least 0.
        momentum: momentum of SGD, in [0, 1); 0 is plain SGD, for methods that have a momentum of their own. Adam has
            none of this kind.
        weight_decay: L2 coefficient, at least 0; of AdamW the decoupled one.
        warmup: steps of linear warm-up, at least 1.
        drops: fractions of the run, in [0, 1], at which the learning rate falls.
        fall: factor of the learning rate at these epochs, >= 0.
        linear: true: the learning rate falls evenly from the end of the warm-up to the end of the run instead.
        cosine: share of the peak, in [0, 1], to which the learning rate falls by half a cosine from the end of the
            warm-up to the end of the run instead; None: it does not. Not together with ``linear``.
        clip: largest norm of the averaged gradient, all parameters together, above 0; None: any.
        optimizer: a key of ``OPTIMIZERS``.
        betas: betas of Adam, in [0, 1).
        epochs: passes over the data, where nobody says how many; at least 1.
        steps: most steps of an epoch, >= 1; None: as many as the data has.
        autocast: forward pass and loss compute in bfloat16 where torch's autocast does; parameters, gradients and the
            optimizer stay float32.

    Raises:
        ConfigError: no such optimizer, a value of another type or out of its range, or two schedules.

    Example:
        >>> [round(Recipe(warmup=2).factor(step, 10), 4) for step in (0, 1, 4, 5, 8)]
        [0.5, 1.0, 1.0, 0.1, 0.01]
        >>> [round(Recipe(warmup=2, linear=True).factor(step, 10), 4) for step in (0, 1, 5, 9)]
        [0.5, 1.0, 0.5, 0.0]
        >>> [round(Recipe(warmup=2, cosine=0.1).factor(step, 10), 4) for step in (0, 1, 5, 9)]
        [0.5, 1.0, 0.55, 0.1]
        >>> Recipe(cosine=1.5)
        Traceback (most recent call last):
        gradwire.errors.ConfigError: Recipe.cosine must be a number in [0, 1], or None, got 1.5
        >>> Recipe(batch=64, micro=0)
        Traceback (most recent call last):
        gradwire.errors.ConfigError: Recipe.micro must be an integer >= 1, or None, got 0
        >>> Recipe(autocast="bfloat16")
        Traceback (most recent call last):
        gradwire.errors.ConfigError: Recipe.autocast must be true or false, got 'bfloat16'
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
    steps: int | None = None
    cosine: float | None = None
    autocast: bool = False
    micro: int | None = None

    def __post_init__(self) -> None:
        for name, (good, allowed) in _ALLOWED.items():
            value = getattr(self, name)
            require(good(value), f"Recipe.{name}", allowed, value)
        require(not (self.linear and self.cosine is not None), "Recipe.cosine", "None with linear", self.cosine)

    def build(self, params: Params) -> Optimizer:
        """Build the optimizer at the peak learning rate."""
        return OPTIMIZERS[self.optimizer](self, params)

    def factor(self, step: int, steps: int) -> float:
        """The factor on the peak learning rate in ``step`` of ``steps``; for ``LambdaLR``."""
        warm = min((step + 1) / self.warmup, 1.0)
        left = (steps - 1 - step) / max(steps - self.warmup, 1)
        if self.linear:
            return min(warm, left)
        if self.cosine is not None:
            done = min(max(1 - left, 0.0), 1.0)
            return warm * (self.cosine + (1 - self.cosine) * (1 + math.cos(math.pi * done)) / 2)
        fallen = sum(step >= drop * steps for drop in self.drops)
        return warm * self.fall**fallen

    def clip_(self, params: Iterable[Tensor]) -> None:
        """Scale the gradients down in place if their norm is too large."""
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(params, self.clip)


def _sgd(recipe: Recipe, params: Params) -> Optimizer:
    nesterov = recipe.momentum > 0
    return SGD(params, recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay, nesterov=nesterov)


def _betas(recipe: Recipe) -> tuple[float, float]:
    """The betas in the form that Adam accepts; it refuses a 0 that is an integer."""
    first, second = recipe.betas
    return float(first), float(second)


def _adam(recipe: Recipe, params: Params) -> Optimizer:
    return Adam(params, recipe.lr, _betas(recipe), weight_decay=recipe.weight_decay)


def _adamw(recipe: Recipe, params: Params) -> Optimizer:
    return AdamW(params, recipe.lr, _betas(recipe), weight_decay=recipe.weight_decay)


def _muon(recipe: Recipe, params: Params) -> Optimizer:
    given: Any = list(params)
    return MuonAdamW(given, recipe.lr, betas=_betas(recipe), weight_decay=recipe.weight_decay)


def _rmsprop(recipe: Recipe, params: Params) -> Optimizer:
    return RMSprop(
        params,
        recipe.lr,
        alpha=0.9,
        eps=1e-10,
        weight_decay=recipe.weight_decay,
        momentum=recipe.momentum,
        centered=True,
    )


OPTIMIZERS: dict[str, Callable[[Recipe, Params], Optimizer]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
    "muon": _muon,
    "rmsprop": _rmsprop,
}
"""SGD is Nesterov's, RMSprop the centered one, as in the benchmarks' originals. Muon has an AdamW of a twentieth of its
rate for what is no matrix of a layer, and needs names."""


def _in(low: float, high: float, *, below: bool = False) -> Callable[[Any], bool]:
    """Return whether a value is a number from ``low`` to ``high``, or less than ``below``; NaN is in no range."""

    def good(value: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and low <= value <= high and (value < high or not below)

    return good


def _each(good: Callable[[Any], bool], count: int | None = None) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple | list) and count in (None, len(value)) and all(map(good, value))


_Check = tuple[Callable[[Any], bool], str]
_MOST = sys.float_info.max
_AT_LEAST_1: _Check = (lambda value: is_int(value, 1), "an integer >= 1")
_COUNT: _Check = (lambda value: value is None or is_int(value, 1), "an integer >= 1, or None")
_FINITE: _Check = (_in(0, _MOST), "a finite number >= 0")

_ALLOWED: dict[str, _Check] = {
    "batch": _AT_LEAST_1,
    "lr": _FINITE,
    "momentum": (_in(0, 1, below=True), "a number in [0, 1)"),
    "weight_decay": _FINITE,
    "warmup": _AT_LEAST_1,
    "drops": (_each(_in(0, 1)), "a sequence of numbers in [0, 1]"),
    "fall": _FINITE,
    "linear": (lambda value: value in (False, True), "true or false"),
    "clip": (lambda value: value is None or (_in(0, math.inf)(value) and value > 0), "a number above 0, or None"),
    "optimizer": (lambda value: isinstance(value, str) and value in OPTIMIZERS, f"one of {', '.join(OPTIMIZERS)}"),
    "betas": (_each(_in(0, 1, below=True), 2), "two numbers in [0, 1)"),
    "epochs": _AT_LEAST_1,
    "steps": _COUNT,
    "cosine": (lambda value: value is None or _in(0, 1)(value), "a number in [0, 1], or None"),
    "autocast": (lambda value: isinstance(value, bool), "true or false"),
    "micro": _COUNT,
}
