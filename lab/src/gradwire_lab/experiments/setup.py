"""Settings that a method needs besides its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Setup"]


@dataclass(frozen=True)
class Setup:
    """The settings with which a method is trained on a task.

    Args:
        reason: reason for the difference from the defaults, one line.
        params: parameters of the compressor.
        options: further arguments of ``compress_ddp``, or of the optimizer that exchanges.
        loss_scale: see ``Method``.
        recipe: settings that differ from the task's recipe.
        optimizer: see ``Method``.
        misses: reason why the method cannot end within 2 points of dense training; empty: it does.
    """

    reason: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    loss_scale: float = 1.0
    recipe: Mapping[str, Any] = field(default_factory=dict)
    misses: str = ""
    optimizer: Mapping[str, Any] | None = None
