"""Natural compression, which rounds every element to a power of two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.compressors.decoders import ManyDecoder
from gradwire.compressors.levels import ops
from gradwire.errors import is_int, require
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["Natural"]


@dataclass(frozen=True)
class Natural(ManyDecoder):
    """Round each element to one of the two powers of two around it, at random so that the mean is right.

    |x| = 2^e (1 + f):  C(x) = sign(x) 2^(e + 1) with probability f, else sign(x) 2^e.   omega = 1/8, at f = 1/3.

    A byte holds the sign and 127 exponents and zero. The exponents are a window for each block that ends above its
    largest element, so nothing is clipped; what is 2^126 times smaller than that becomes 0. A block with a NaN or an
    infinity decodes to NaN. Elements above 2^127 stay there, where float32 ends.

    With rounding to the nearest the method is a contraction instead: |C(x) - x| <= |x| / 3, delta = 8/9.

    Args:
        rounding: "random", unbiased, or "nearest", deterministic, with a third less error but a bias: use feedback.
        block: elements that share a window, a multiple of 16 in [16, 65536]; each costs 8 bits.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = Natural(rounding="nearest")
        >>> code.layout((4096,)).nbytes
        4098
        >>> code.decompress(code.compress(torch.tensor([1.4, -2.9, 3.1, 0.0])), (4,)).tolist()
        [1.0, -2.0, 4.0, 0.0]

    Source:
        S. Horvath, C.-Y. Ho, L. Horvath, A. N. Sahu, M. Canini, P. Richtarik, "Natural Compression for Distributed Deep
        Learning", MSML 2022.
    """

    rounding: Literal["random", "nearest"] = "random"
    block: int = 2048

    name = "natural"
    fine = True
    takes_pieces = True
    reference = "S. Horvath, C.-Y. Ho, L. Horvath, A. N. Sahu, M. Canini, P. Richtarik, Natural Compression, MSML 2022"

    def __post_init__(self) -> None:
        require(self.rounding in ("random", "nearest"), "Natural.rounding", "'random' or 'nearest'", self.rounding)
        require(is_int(self.block, 16, 65536, of=16), "Natural.block", "a multiple of 16 in [16, 65536]", self.block)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.rounding == "random"

    @property
    def random(self) -> bool:  # type: ignore[override]
        return self.rounding == "random"

    def delta(self, n: int) -> float:
        return 7 / 8 if self.random else 8 / 9

    def omega(self, n: int) -> float:
        return 1 / 8 if self.random else math.inf

    @property
    def alignment(self) -> int:
        return self.block

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        return Layout((Field("bases", torch.uint8, -(-n // self.block)), Field("codes", torch.uint8, n)))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        bases, codes = payload
        ops.natural_encode(x, bases, codes, self.rounding, self.block, key.stream(), key.step)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        bases, codes = payload
        ops.natural_encode_feedback(
            grad,
            residual,
            bases,
            codes,
            self.rounding,
            self.block,
            key.stream(),
            key.step,
            status,
        )

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        bases, codes = payloads
        ops.natural_add_decoded(bases, codes, out, self.block, scale)
