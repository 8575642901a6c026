"""A cast to the upper half of float32."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts._float_cast import Cast
from gradwire.errors import require
from gradwire.kernels.segments import cache_pieces
from gradwire.vocabulary import Key, Payload, State

__all__ = ["BF16"]


@dataclass(frozen=True)
class BF16(Cast):
    """Send every element in bfloat16: 16 bits an element, 8 of them significant, float32's range.

        nearest   C(x) = round(x), ties to even: |C(x) - x| <= 2^-8 |x| for |x| >= 2^-126, hence delta = 1 - 2^-16
        random    C(x) = upper 16 bits of (bits of x + 16 random bits): E C(x) = x, omega = 2^-16

    Only elements above 3.38e38 round to infinity; with feedback such a step is reported as non-finite.

    Args:
        rounding: "nearest", whose payloads an all-reduce sums, or "random": right on average, so that what is too small
            to change a 16-bit number still counts over many steps and workers. A sum on its way would be rounded to the
            nearest again, so such payloads are gathered and summed in float32.

    Raises:
        ConfigError: another rounding.

    Example:
        >>> BF16().decompress(BF16().compress(torch.tensor([1.0, 0.1, 1e-9])), (3,)).tolist()
        [1.0, 0.10009765625, 9.968061931431293e-10]

    Source:
        D. Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019.
    """

    rounding: Literal["nearest", "random"] = "nearest"

    name = "bf16"
    plain_dtype = torch.bfloat16
    fine = True
    family = "cast"
    reference = "D. Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, 2019"
    dtype = torch.bfloat16
    tells_nonfinite = True

    def __post_init__(self) -> None:
        require(self.rounding in ("nearest", "random"), "BF16.rounding", "'nearest' or 'random'", self.rounding)

    @property
    def random(self) -> bool:  # type: ignore[override]
        return self.rounding == "random"

    @property
    def takes_pieces(self) -> bool:  # type: ignore[override]
        """Return whether the cast takes pieces, as it does with rounding to nearest."""
        return self.rounding == "nearest"

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.rounding == "random"

    @property
    def summable(self) -> bool:  # type: ignore[override]
        """Return whether payloads can be summed, as with rounding to nearest."""
        return self.rounding == "nearest"

    def sums_in(self, dtype: torch.dtype) -> bool:
        """Return whether gradients of this dtype are summed in it, as with rounding to nearest."""
        return not self.random and super().sums_in(dtype)

    def delta(self, n: int) -> float:
        return 1.0 - 2.0**-16

    def omega(self, n: int) -> float:
        return 2.0**-16 if self.random else math.inf

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        if not self.random:
            super().encode(x, payload, state, key)
            return
        for begin, piece in cache_pieces(x.view(-1)):
            values = payload[0][begin : begin + piece.numel()]
            words = torch.empty(-(-piece.numel() // 2), dtype=torch.int32, device=x.device)
            kernels.philox(words, key.stream(), key.step, begin // 8)
            halves = words.view(torch.int16)[: piece.numel()].int() & 0xFFFF
            upper = (piece.view(torch.int32) + halves >> 16).to(torch.int16)
            # A carry would turn some NaN into a number; the cast keeps them.
            values.copy_(piece)
            torch.where(piece.isfinite(), upper, values.view(torch.int16), out=values.view(torch.int16))

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        if self.random:
            Compressor.encode_feedback(self, grad, residual, payload, state, key, status)
        else:
            super().encode_feedback(grad, residual, payload, state, key, status)
