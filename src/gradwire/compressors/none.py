"""No compression: the dense gradient, as the reference to compare with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors.base import Compressor
from gradwire.types import Field, Key, Layout, Payload, State

__all__ = ["Identity"]


@dataclass(frozen=True)
class Identity(Compressor):
    """Send every element in float32: C(x) = x, 32 bits an element.

    Example:
        >>> Identity().decompress(Identity().compress(torch.tensor([1.5, -2.0])), (2,)).tolist()
        [1.5, -2.0]

    Source:
        None: it is what a data-parallel run does without compression.
    """

    name = "none"
    family = "cast"
    reference = "uncompressed data-parallel training"
    summable = True
    unbiased = True
    elementwise = True

    @property
    def contraction(self) -> bool:
        return True

    def delta(self, n: int) -> float:
        return 1.0

    def omega(self, n: int) -> float:
        return 0.0

    def layout(self, shape: Sequence[int]) -> Layout:
        return Layout((Field("values", torch.float32, math.prod(shape)),))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        payload[0].copy_(x.view(-1))

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        out.view(-1).add_(payload[0], alpha=scale)
