"""MXNet's 2-bit code, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire import ops
from gradwire.compressors._ternary import add_streams, check_stream, codes_for, shrink, stream_layout
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
        wire: "dense": 2 bits an element, MXNet's bytes. "adaptive": of variable size, the 2 bits, a bitmap with signs
            or coded gaps with signs, whichever is smallest in this step: 0.09 bits an element where 1 % of them fire,
            and never more than a byte over the dense form.

    Raises:
        ConfigError: the threshold is not a positive finite number in float32, or the wire is neither of these.

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
    wire: Literal["dense", "adaptive"] = "dense"

    name = "twobit"
    reference = "Apache MXNet gradient compression, 2017; N. Strom, INTERSPEECH 2015"
    elementwise = True

    def __post_init__(self) -> None:
        ok = is_float32(self.threshold) and self.threshold > 0
        require(ok, "TwoBit.threshold", "a finite number > 0 in float32", self.threshold)
        require(self.wire in ("dense", "adaptive"), "TwoBit.wire", "'dense' or 'adaptive'", self.wire)

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        """Only the dense wire."""
        return self.wire == "dense"

    @property
    def feedback(self) -> Feedback:
        return "built-in"

    @property
    def alignment(self) -> int:
        return 16

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        if not self.fixed_size:
            return stream_layout(n)
        return Layout((Field("codes", torch.uint8, 4 * -(-n // 16)),))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        codes = payload[0] if self.fixed_size else codes_for(x)
        ops.twobit_encode(x.view(-1), codes, self.threshold)
        if not self.fixed_size:
            shrink(codes, payload, x.numel())

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        codes = payload[0] if self.fixed_size else codes_for(grad)
        ops.twobit_encode_feedback(grad.view(-1), residual.view(-1), codes, self.threshold, status)
        if not self.fixed_size:
            shrink(codes, payload, grad.numel())

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self._add(tuple(field.unsqueeze(0) for field in payload), out, scale)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        self._add(payloads, out, scale)

    def _add(self, payloads: Payload, out: Tensor, scale: float) -> None:
        if self.fixed_size:
            ops.twobit_add_decoded(payloads[0], out.view(-1), self.threshold, scale)
        else:
            add_streams(payloads, out, self.threshold, scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse a stream that says nothing, or says it in another form than the encoder would.

        Raises:
            WireError: it does. Every dense payload is accepted.
        """
        if not self.fixed_size:
            check_stream(self.name, payload, shape)
