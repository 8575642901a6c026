"""Functions shared by the methods whose threshold may be "auto": it is chosen repeatedly from the gradient itself.

Invariants:
    * The value t that an element sends is agreed: it is the mean of what the ranks propose from their own samples,
      carried to all of them as ``advice``. A payload also contains its t, so a receiver need not know what was agreed,
      or when.
    * The level from which an element is sent is each rank's own and changes in every step, so that a share ``target``
      of its elements is sent, however the gradient changes. But it is never below t / 2.
    * A dither of the level breaks ties between equal elements.

Why:
    Below t / 2, sending would make the residual larger.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import WireError, is_float32, require
from gradwire.vocabulary import Field, Payload, State

__all__ = [
    "AUTO",
    "WISHES",
    "check_carried",
    "choose",
    "fields_of",
    "least_of",
    "require_target",
    "require_threshold",
    "state_of",
    "steps_of",
]

Threshold = float | Literal["auto"]

AUTO: Literal["auto"] = "auto"

WISHES = 2
"""Floats of advice: a sum of wishes and of their weights."""


def require_threshold(name: str, value: Threshold, above: bool = False) -> None:
    """Refuse a threshold that is neither "auto" nor a finite number >= 0, or > 0 with ``above``."""
    ok = value == AUTO or (is_float32(value) and (value > 0 if above else value >= 0))
    require(ok, name, f"a finite number {'>' if above else '>='} 0 in float32, or 'auto'", value)


def require_target(name: str, value: float) -> None:
    """Refuse a target fraction of elements that is above one half."""
    require(is_float32(value) and 0 < value <= 0.5, name, "in (0, 0.5]", value)


def fields_of(threshold: Threshold) -> tuple[Field, ...]:
    """The field in which a payload carries its threshold, if it does: the last but one."""
    return (Field("threshold", torch.float32, 1),) if threshold == AUTO else ()


def state_of(threshold: Threshold, device: torch.device | None) -> State:
    """The state of a method whose threshold is "auto": no wish and no agreed value yet, and the first position of the
    sample.
    """
    if threshold != AUTO:
        return {}
    return {
        "advice": torch.zeros(WISHES, dtype=torch.float32, device=device),
        "agreed": torch.full((WISHES,), math.nan, dtype=torch.float32, device=device),
        "turn": torch.zeros(1, dtype=torch.int64, device=device),
    }


def choose(x: Tensor, threshold: Tensor, state: State, target: float, residual: Tensor | None = None) -> Tensor:
    """Write the threshold of x (+ residual), and return the level from which its elements fire."""
    level = kernels.Pieces.like(threshold)
    kept = None if residual is None else residual.view(-1)
    agreement = state["advice"], state["agreed"], state["turn"]
    kernels.auto_threshold(x.view(-1), threshold, level, *agreement, target, kept)
    return level


def least_of(
    threshold: Threshold, x: Tensor, state: State, target: float, residual: Tensor | None = None
) -> tuple[float, Tensor | None]:
    """The value that elements are compared with: a threshold, or, if that is "auto", a level."""
    if threshold != AUTO:
        return threshold, None
    return 0.0, choose(x, torch.empty(1, dtype=torch.float32, device=x.device), state, target, residual)


def steps_of(threshold: Threshold, payloads: Payload) -> tuple[float, Tensor | None]:
    """The threshold, and the factor for each rank's payload if payloads carry thresholds of their own."""
    return (1.0, payloads[-2]) if threshold == AUTO else (threshold, None)


def check_carried(name: str, threshold: Threshold, payload: Payload) -> None:
    """Refuse a threshold in a payload that no encoder writes.

    Raises:
        WireError: the threshold is negative or not finite.
    """
    if threshold == AUTO and not 0 <= (carried := float(payload[-2])) < math.inf:
        raise WireError(f"{name} threshold of a payload must be finite and >= 0, got {carried}")
