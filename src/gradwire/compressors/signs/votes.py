"""Base of signsgd and signum: a sign for each element, and a vote in place of the mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.compressors.decoders import FreshDecoder
from gradwire.compressors.signs import ops
from gradwire.compressors.ternary.ops import twobit_add_decoded, twobit_encode
from gradwire.errors import require
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["SignCode"]

_LEAST = 2.0**-126
"""The smallest normal float32: a 2-bit code with this threshold tells zero from everything else. A subnormal number
counts as zero, because it is one to a processor that flushes them."""


@dataclass(frozen=True)
class SignCode(FreshDecoder):
    """A code of one bit an element, or two if zero has a code of its own; the mean of all ranks is replaced by its
    sign.
    """

    feedback = "unsafe"
    ties: Literal["positive", "zero"] = "positive"

    elementwise = True
    votes = True
    takes_pieces = True

    def __post_init__(self) -> None:
        require(self.ties in ("positive", "zero"), f"{type(self).__name__}.ties", "'positive' or 'zero'", self.ties)

    @property
    def bounded(self) -> str:
        return "EFSignSGD()"

    @property
    def alignment(self) -> int:
        return 16 if self.ties == "zero" else 8

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        return Layout((Field("codes", torch.uint8, 4 * -(-n // 16) if self.ties == "zero" else -(-n // 8)),))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        if self.ties == "zero":
            twobit_encode(x, payload[0], _LEAST)
        else:
            ops.sign_encode(x, payload[0])

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        if self.ties == "zero":
            super().encode_feedback(grad, residual, payload, state, key, status)
        else:
            ops.sign_encode_feedback(grad, residual, payload[0], status)

    def add_rows(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool) -> None:
        if self.ties == "zero":
            twobit_add_decoded(payloads[0], out, 1.0, scale, None, fresh)
        else:
            ops.sign_add_decoded(payloads[0], out, scale, fresh)

    def settle(self, mean: Tensor) -> None:
        ops.sign_vote(mean, 0.0 if self.ties == "zero" else 1.0)
