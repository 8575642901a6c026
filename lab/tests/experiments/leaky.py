"""A memory that forgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradwire.memory.residual import Residual

__all__ = ["Leaky"]


@dataclass(frozen=True)
class Leaky(Residual):
    """Residual, but for the first element of each tensor."""

    def encode(self, compressor: Any, grad: Tensor, kept: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> None:
        super().encode(compressor, grad, kept, *args, **kwargs)
        kept["residual"].view(-1)[0] = 0.0
