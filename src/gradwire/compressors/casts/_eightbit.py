"""Base of the 8-bit codes: a scale for each block, and the nearest of 256 values for each element."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.compressors.casts import ops
from gradwire.compressors.decoders import FreshDecoder
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["EightBit"]

UNIT = {"linear": 0.5 / 127, "dynamic": 0.9 / 128, "e4m3": 2.0**-10 / 448, "e5m2": 2.0**-17 / 57344}
"""Half the largest distance of two values of a codebook, of floats half that of their subnormals, in units of N."""

RELATIVE = {"linear": 0.0, "dynamic": 0.0, "e4m3": 2.0**-4, "e5m2": 2.0**-3}
"""Largest relative loss of an element where the codebook's steps grow with it."""

ROUNDING = 1.0 + 2.0**-16
"""Room for the float32 arithmetic in the bounds."""


class EightBit(FreshDecoder):
    """An 8-bit code: C(x) = value * N / F with N the largest magnitude of a block, F that of the codebook, value the
    nearest to F x / N.

    An element is off by at most u N, or by the fraction r of itself where that is more, and never by more than itself.
    In a block of B elements one has the magnitude N, so what is lost is at most r^2 |x|^2 + E with E <= B u^2 N^2,
    while |x|^2 >= N^2 + E - u^2 N^2; hence 1 - delta = r^2 + B u^2 / (1 + (B - 1) u^2).
    """

    takes_pieces = True

    @property
    @abstractmethod
    def codebook(self) -> str:
        """The name of the 256 values, as ``eightbit_encode`` uses it."""

    @property
    @abstractmethod
    def span(self) -> int:
        """The number of elements that share a scale; 0 for all."""

    def delta(self, n: int) -> float:
        size = max(1, min(self.span or n, n))
        square = (ROUNDING * UNIT[self.codebook]) ** 2
        return 1.0 - RELATIVE[self.codebook] ** 2 - size * square / (1 + (size - 1) * square)

    @property
    def alignment(self) -> int:
        return self.span or 1

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        scales = -(-n // self.span) if self.span else min(n, 1)
        return Layout((Field("scales", torch.float32, scales), Field("codes", torch.uint8, n)))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        scales, codes = payload
        ops.eightbit_encode(x, scales, codes, self.codebook, self.span)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        scales, codes = payload
        ops.eightbit_encode_feedback(grad, residual, scales, codes, self.codebook, self.span, status)

    def add_rows(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool) -> None:
        scales, codes = payloads
        ops.eightbit_add_decoded(scales, codes, out, self.codebook, self.span, scale, fresh)
