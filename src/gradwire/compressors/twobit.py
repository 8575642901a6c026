"""MXNet's 2-bit code, bit for bit."""

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

__all__ = ["TwoBit"]


@dataclass(frozen=True)
class TwoBit(Compressor):
    """Send +t, 0 or -t for each element and keep the rest: 2 bits an element.

    r = residual + g;  r >= t: code 11, residual = r - t;  r <= -t: code 10, residual = r + t;  else code 00.

    Args:
        threshold: t > 0, in the gradient's unit. A residual drains by at most t a step: too small a threshold and
            large gradients queue up, too large and small ones wait long. The default suits MXNet's convention, where
            gradients are sums over a batch; for mean losses use 1e-3 to 1e-2.

    Raises:
        ConfigError: the threshold is not a positive finite number in float32.

    Example:
        >>> code = TwoBit(threshold=0.5)
        >>> code.layout((17,)).nbytes
        8
        >>> code.decompress(code.compress(torch.tensor([0.6, -0.5, 0.1])), (3,)).tolist()
        [0.5, -0.5, 0.0]

    Source:
        Apache MXNet, "Gradient Compression" (pull request 8662, 2017), after N. Strom, "Scalable Distributed DNN
        Training Using Commodity GPU Cloud Computing", INTERSPEECH 2015.
    """

    threshold: float = 0.5

    name = "twobit"
    reference = "Apache MXNet gradient compression, 2017; N. Strom, INTERSPEECH 2015"
    elementwise = True

    def __post_init__(self) -> None:
        ok = is_float32(self.threshold) and self.threshold > 0
        require(ok, "TwoBit.threshold", "a finite number > 0 in float32", self.threshold)

    @property
    def feedback(self) -> Feedback:
        return "built-in"

    @property
    def alignment(self) -> int:
        return 16

    def layout(self, shape: Sequence[int]) -> Layout:
        words = -(-math.prod(shape) // 16)
        return Layout((Field("codes", torch.uint8, 4 * words),))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        ops.twobit_encode(x.view(-1), payload[0], self.threshold)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        ops.twobit_encode_feedback(grad.view(-1), residual.view(-1), payload[0], self.threshold, status)

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        ops.twobit_add_decoded(payload[0].unsqueeze(0), out.view(-1), self.threshold, scale)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        ops.twobit_add_decoded(payloads[0], out.view(-1), self.threshold, scale)
