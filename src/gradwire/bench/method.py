"""How gradients are exchanged in a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradwire.compressors.base import Compressor

__all__ = ["Method"]


@dataclass(frozen=True)
class Method:
    """A compressor, and what training with it needs.

    Args:
        label: names it in tables and on progress bars.
        compressor: with its parameters.
        options: for ``compress_ddp``.
        loss_scale: the loss is multiplied by it before backward, and the averaged gradients are divided by it; for
            codes whose steps have a size of their own.
        recipe: what the method needs changed in the task's own recipe.
    """

    label: str
    compressor: Compressor
    options: Mapping[str, Any] = field(default_factory=dict)
    loss_scale: float = 1.0
    recipe: Mapping[str, Any] = field(default_factory=dict)
