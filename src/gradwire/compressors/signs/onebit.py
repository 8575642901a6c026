"""MXNet's 1-bit code, bit for bit, and the same with the sender's own step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.compressors.decoders import FreshDecoder
from gradwire.compressors.signs import ops
from gradwire.errors import is_float32, require
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["OneBit"]


@dataclass(frozen=True)
class OneBit(FreshDecoder):
    """Send +s or -s for each element and keep the rest: 1 bit an element.

    r = residual + g;  r > t s: bit 1, residual = r - s;  else bit 0, residual = r + s.

    "unit" has s = 1: gradients must be of order 1, or the learning rate must carry the scale. While |g| <= 1
    the residual stays within 1 + |t|; a gradient of zero still sends a dither of -1 and +1. "mean" has s = the mean of
    |r| over the tensor, sent along, so gradients may have any scale; MXNet has no such code.

    Args:
        threshold: t, in units of the step s; any real number. It moves the switching point, not the step, and
            every element is sent whatever it is: there is no share that fires to choose it by, so it has no "auto".
            With scale="mean" take 0: the step then is the best one for the signs.
        scale: "unit" for MXNet's bytes, or "mean" for a step of the sender's mean magnitude: 4 bytes more a tensor,
            and one more pass over it.

    Raises:
        ConfigError: the threshold is not a finite number in float32, or an unknown scale.

    Example:
        >>> code = OneBit(threshold=0.5)
        >>> code.layout((33,)).nbytes
        8
        >>> code.decompress(code.compress(torch.tensor([0.6, 0.5, -0.1])), (3,)).tolist()
        [1.0, -1.0, -1.0]
        >>> code = OneBit(threshold=0.0, scale="mean")
        >>> code.decompress(code.compress(torch.tensor([0.25, 0.5, -0.75])), (3,)).tolist()
        [0.5, 0.5, -0.5]

    Source:
        Apache MXNet, gradient compression "1bit", 2020, after F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-Bit
        Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech DNNs",
        INTERSPEECH 2014.
    """

    threshold: float = 0.5
    scale: Literal["unit", "mean"] = "unit"

    name = "onebit"
    takes_pieces = True
    reference = "Apache MXNet gradient compression (1bit); F. Seide et al., INTERSPEECH 2014"
    feedback = "built-in"
    alignment = 32

    def __post_init__(self) -> None:
        require(is_float32(self.threshold), "OneBit.threshold", "a finite number in float32", self.threshold)
        require(self.scale in ("unit", "mean"), "OneBit.scale", "'unit' or 'mean'", self.scale)

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        return self.scale == "unit"

    @property
    def contraction(self) -> bool:
        return self.scale == "mean" and self.threshold == 0

    def delta(self, n: int) -> float:
        return 1 / max(1, n) if self.contraction else 0.0

    def layout(self, shape: Sequence[int]) -> Layout:
        codes = Field("codes", torch.uint8, 4 * -(-math.prod(shape) // 32))
        return Layout((codes,) if self.scale == "unit" else (Field("step", torch.float32, 1), codes))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        *steps, codes = payload
        for step in steps:
            ops.mean_magnitude(x, step)
        ops.onebit_encode(x, codes, self.threshold, *steps)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        *steps, codes = payload
        for step in steps:
            ops.mean_magnitude(grad, step, residual)
        ops.onebit_encode_feedback(grad, residual, codes, self.threshold, status, *steps)

    def add_rows(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool) -> None:
        steps = payloads[0] if self.scale == "mean" else None
        ops.onebit_add_decoded(payloads[-1], out, scale, steps, fresh)
