"""MXNet's 1-bit code, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import ops
from gradwire.compressors.base import Compressor, Feedback
from gradwire.errors import is_float32, require
from gradwire.types import Field, Key, Layout, Payload, State

__all__ = ["OneBit"]


@dataclass(frozen=True)
class OneBit(Compressor):
    """Send +1 or -1 for each element and keep the rest: 1 bit an element.

    r = residual + g;  r > t: bit 1, residual = r - 1;  else bit 0, residual = r + 1.

    The steps have no scale: gradients must be of order 1, or the learning rate must carry the scale. While |g| <= 1
    the residual stays within 1 + |t|; a gradient of zero still sends a dither of -1 and +1.

    Args:
        threshold: t, in the gradient's unit; any real number. It moves the switching point, not the step.

    Raises:
        ConfigError: the threshold is not a finite number in float32.

    Example:
        >>> code = OneBit(threshold=0.5)
        >>> code.layout((33,)).nbytes
        8
        >>> code.decompress(code.compress(torch.tensor([0.6, 0.5, -0.1])), (3,)).tolist()
        [1.0, -1.0, -1.0]

    Source:
        Apache MXNet, gradient compression "1bit", 2020, after F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-Bit
        Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech DNNs",
        INTERSPEECH 2014.
    """

    threshold: float = 0.5

    name = "onebit"
    reference = "Apache MXNet gradient compression (1bit); F. Seide et al., INTERSPEECH 2014"
    elementwise = True

    def __post_init__(self) -> None:
        require(is_float32(self.threshold), "OneBit.threshold", "a finite number in float32", self.threshold)

    @property
    def feedback(self) -> Feedback:
        return "built-in"

    @property
    def alignment(self) -> int:
        return 32

    def layout(self, shape: Sequence[int]) -> Layout:
        words = -(-math.prod(shape) // 32)
        return Layout((Field("codes", torch.uint8, 4 * words),))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        ops.onebit_encode(x.view(-1), payload[0], self.threshold)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        ops.onebit_encode_feedback(grad.view(-1), residual.view(-1), payload[0], self.threshold, status)

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        ops.onebit_add_decoded(payload[0].unsqueeze(0), out.view(-1), scale)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        ops.onebit_add_decoded(payloads[0], out.view(-1), scale)
