"""Base of the casts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors.casts import ops
from gradwire.compressors.decoders import FreshDecoder
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["Cast"]


class Cast(FreshDecoder):
    """A cast of every element to ``dtype``, to nearest, ties to even; the 1/W of a mean is applied
    before the rounding.
    """

    dtype: ClassVar[torch.dtype]

    summable = True
    elementwise = True
    takes_pieces = True
    tells_nonfinite = True

    def sums_in(self, dtype: torch.dtype) -> bool:
        return dtype == self.dtype

    def layout(self, shape: Sequence[int]) -> Layout:
        return Layout((Field("values", self.dtype, math.prod(shape)),))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        ops.cast_encode(x, payload[0], 1.0)

    def encode_scaled(self, x: Tensor, scale: float, payload: Payload, state: State, key: Key) -> None:
        ops.cast_encode(x, payload[0], scale)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        ops.cast_encode_feedback(grad, residual, payload[0], status)

    def add_rows(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool) -> None:
        ops.cast_add_decoded(payloads[0], out, scale, fresh=fresh)
