"""Learning-rate schedules by the number of updates: MXNet's, as names and numbers that travel to the servers.

A rate is a function of the number of the update alone, counted from 1; nothing is kept between two calls.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gradwire.errors import ConfigError, as_python, is_float32, is_int, nearest, require

__all__ = [
    "CosineScheduler",
    "FactorScheduler",
    "LRScheduler",
    "MultiFactorScheduler",
    "PolyScheduler",
    "scheduler_of",
]


def require_rate(name: str, rate: float) -> None:
    """Refuse an invalid learning rate."""
    require(is_float32(rate) and rate >= 0, name, "a finite number >= 0", rate)


@dataclass
class LRScheduler(ABC):
    """Base of all schedules: a warm-up to ``base_lr``, and what follows it. All of them take these arguments by name.

    Args:
        base_lr: rate after the warm-up; the optimizer's ``learning_rate`` takes its place where it is given.
        warmup_steps: updates in which the rate comes from ``warmup_begin_lr`` to ``base_lr``, >= 0.
        warmup_begin_lr: rate at the start of the warm-up.
        warmup_mode: "linear", or "constant": it stays at ``warmup_begin_lr``.
    """

    base_lr: float = field(default=0.01, kw_only=True)
    warmup_steps: int = field(default=0, kw_only=True)
    warmup_begin_lr: float = field(default=0.0, kw_only=True)
    warmup_mode: str = field(default="linear", kw_only=True)

    def __post_init__(self) -> None:
        for name in ("base_lr", "warmup_begin_lr"):
            require_rate(name, getattr(self, name))
        require(is_int(self.warmup_steps, 0), "warmup_steps", "an integer >= 0", self.warmup_steps)
        require(self.warmup_mode in ("linear", "constant"), "warmup_mode", "'linear' or 'constant'", self.warmup_mode)

    def __call__(self, num_update: int) -> float:
        """Return the rate of an update, counted from 1."""
        if num_update < self.warmup_steps:
            share = num_update / self.warmup_steps if self.warmup_mode == "linear" else 0.0
            return float(self.warmup_begin_lr + (self.base_lr - self.warmup_begin_lr) * share)
        return float(self._rate(num_update))

    def to_config(self) -> dict[str, Any]:
        """Return its name and numbers."""
        return {"name": type(self).__name__, **{name: as_python(value) for name, value in asdict(self).items()}}

    @abstractmethod
    def _rate(self, num_update: int) -> float:
        """The rate after the warm-up."""


@dataclass
class FactorScheduler(LRScheduler):
    """A schedule of ``base_lr * factor^k`` after ``k * step`` updates, but never less than ``stop_factor_lr``.

    Args:
        step: updates, >= 1.
        factor: factor of the rate, in (0, 1].
        stop_factor_lr: the least rate, >= 0.

    Example:
        >>> scheduler = FactorScheduler(2, factor=0.5, base_lr=1.0)
        >>> [scheduler(update) for update in (1, 2, 3, 4, 5)]
        [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    step: int
    factor: float = 1.0
    stop_factor_lr: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        require(is_int(self.step, 1), "step", "an integer >= 1", self.step)
        require(is_float32(self.factor) and 0 < self.factor <= 1, "factor", "in (0, 1]", self.factor)
        require_rate("stop_factor_lr", self.stop_factor_lr)

    def _rate(self, num_update: int) -> float:
        times = max(0, (num_update - 1) // self.step)
        return max(self.base_lr * self.factor**times, self.stop_factor_lr) if times else self.base_lr


@dataclass
class MultiFactorScheduler(LRScheduler):
    """A schedule of ``base_lr * factor^k`` after k of the given numbers of updates.

    Args:
        step: numbers of updates, each larger than the one before it.
        factor: factor of the rate, in (0, 1].

    Raises:
        ConfigError: steps that do not grow, or a factor outside its range.

    Example:
        >>> scheduler = MultiFactorScheduler([2, 4], factor=0.5, base_lr=1.0)
        >>> [scheduler(update) for update in (1, 2, 3, 4, 5)]
        [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    step: Sequence[int]
    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        given = isinstance(self.step, Sequence) and not isinstance(self.step, str)
        grows = given and all(is_int(each, 1) for each in self.step) and list(self.step) == sorted(set(self.step))
        require(bool(self.step) and grows, "step", "integers >= 1, each larger than the one before it", self.step)
        require(is_float32(self.factor) and 0 < self.factor <= 1, "factor", "in (0, 1]", self.factor)
        self.step = [as_python(each) for each in self.step]

    def _rate(self, num_update: int) -> float:
        return self.base_lr * self.factor ** sum(num_update > each for each in self.step)


@dataclass
class PolyScheduler(LRScheduler):
    """A rate from ``base_lr`` down to ``final_lr``, which is reached after ``max_update`` updates, as (1 - t)^pwr.

    Args:
        max_update: updates, >= 1, more than ``warmup_steps``.
        pwr: power of the polynomial, > 0.
        final_lr: rate at the end.

    Example:
        >>> scheduler = PolyScheduler(4, pwr=1, base_lr=1.0)
        >>> [scheduler(update) for update in (1, 2, 3, 4, 9)]
        [0.75, 0.5, 0.25, 0.0, 0.0]
    """

    max_update: int
    pwr: float = field(default=2, kw_only=True)
    final_lr: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_end(self.max_update, self.warmup_steps)
        require(is_float32(self.pwr) and self.pwr > 0, "pwr", "a finite number > 0", self.pwr)
        require_rate("final_lr", self.final_lr)

    def _rate(self, num_update: int) -> float:
        left = 1 - way(self.warmup_steps, self.max_update, num_update)
        return float(self.final_lr + (self.base_lr - self.final_lr) * left**self.pwr)


@dataclass
class CosineScheduler(LRScheduler):
    """A rate from ``base_lr`` down to ``final_lr``, which is reached after ``max_update`` updates, along half a cosine.

    Args:
        max_update: updates, >= 1, more than ``warmup_steps``.
        final_lr: rate at the end.

    Example:
        >>> scheduler = CosineScheduler(4, base_lr=1.0)
        >>> [round(scheduler(update), 3) for update in (1, 2, 3, 4, 9)]
        [0.854, 0.5, 0.146, 0.0, 0.0]
    """

    max_update: int
    final_lr: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_end(self.max_update, self.warmup_steps)
        require_rate("final_lr", self.final_lr)

    def _rate(self, num_update: int) -> float:
        share = (1 + math.cos(math.pi * way(self.warmup_steps, self.max_update, num_update))) / 2
        return self.final_lr + (self.base_lr - self.final_lr) * share


SCHEDULERS: Mapping[str, type[LRScheduler]] = {
    cls.__name__: cls for cls in (FactorScheduler, MultiFactorScheduler, PolyScheduler, CosineScheduler)
}


def scheduler_of(schedule: Any, base_lr: float | None = None) -> LRScheduler:
    """Make one of the schedules here, from itself or from its name and numbers.

    Args:
        schedule: a scheduler, or what its ``to_config`` gives.
        base_lr: takes the place of its own; None: it stays.

    Raises:
        ConfigError: the argument is no schedule of these, or has numbers that the schedule refuses.
    """
    config = schedule.to_config() if isinstance(schedule, LRScheduler) else schedule
    name = config.get("name") if isinstance(config, Mapping) else config
    if not isinstance(config, Mapping) or not isinstance(name, str) or name not in SCHEDULERS:
        raise ConfigError(
            f"lr_scheduler must be one of {', '.join(SCHEDULERS)} (gradwire.contrib.mxnet.lr_scheduler), which travel "
            f"as names and numbers, got {name!r}: for another function, Module takes it as it is, and with a Trainer "
            "call set_learning_rate(...) before each step"
        )
    numbers = {each: value for each, value in config.items() if each != "name"}
    try:
        scheduler = SCHEDULERS[name](**numbers)
    except TypeError as error:
        known = SCHEDULERS[name].__dataclass_fields__
        wrong = next((each for each in numbers if each not in known), None)
        hint = "" if wrong is None else f": {nearest(wrong, known)}"
        raise ConfigError(f"{name} refuses {numbers}: {error}{hint}") from None
    if base_lr is not None:
        scheduler.base_lr = base_lr
    return scheduler


def require_end(max_update: Any, warmup_steps: int) -> None:
    """Refuse an end that is not after the warm-up."""
    require(
        is_int(max_update, warmup_steps + 1), "max_update", f"an integer > warmup_steps, {warmup_steps}", max_update
    )


def way(start: int, end: int, num_update: int) -> float:
    """The fraction of the way from the end of the warm-up to the last update that has been made, in [0, 1]."""
    return (min(num_update, end) - start) / (end - start)
