"""MXNet's 2-bit code, bit for bit, and the same with a threshold that follows the gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors import auto_threshold
from gradwire.compressors.auto_threshold import AUTO
from gradwire.compressors.decoders import FreshDecoder
from gradwire.compressors.ternary import ops
from gradwire.compressors.ternary.streams import (
    add_streams,
    check_stream,
    codes_for,
    dithered,
    dithered_feedback,
    shrink,
    stream_layout,
)
from gradwire.errors import require
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["TwoBit"]


@dataclass(frozen=True)
class TwoBit(FreshDecoder):
    """Send +t, 0 or -t for each element and keep the rest: 2 bits an element.

    r = residual + g;  r >= t: code 11, residual = r - t;  r <= -t: code 10, residual = r + t;  else code 00.

    With threshold="auto" element i compares with l d_i in place of t, and t travels in the payload. l = max(q, t / 2),
    q such that the share ``target`` fires, from a sample of the |r_i| / d_i; t is the mean over the ranks of a running
    mean of their q; d_i = 1 + frac(0.618... i), so that equal elements do not fire together.

    Args:
        threshold: t > 0, in the gradient's unit. A residual drains by at most t a step: too small a threshold and
            large gradients queue up, too large and small ones wait long. The default suits MXNet's convention, where
            gradients are sums over a batch; for mean losses use 1e-3 to 1e-2. "auto": nobody need know the unit; each
            tensor has its own t, 4 bytes of it travel, and choosing it takes 30 to 80 us a tensor and step.
        wire: "dense": 2 bits an element, MXNet's bytes. "adaptive": of variable size, the 2 bits, a bitmap with signs
            or coded gaps with signs, whichever is smallest in this step: 0.09 bits an element where 1 % of them fire,
            and never more than a byte over the dense form.
        target: share of the elements that fire in a step with "auto", in (0, 0.5]. Lower: larger t, later and coarser,
            but fewer bytes with the adaptive wire. Without "auto" it has no effect.

    Raises:
        ConfigError: the threshold is neither a positive finite number in float32 nor "auto", the wire is neither of
            these, or a target out of range.

    Example:
        >>> code = TwoBit(threshold=0.5)
        >>> code.layout((17,)).nbytes
        8
        >>> code.decompress(code.compress(torch.tensor([0.6, -0.5, 0.1])), (3,)).tolist()
        [0.5, -0.5, 0.0]
        >>> code = TwoBit(threshold="auto", target=0.25)
        >>> code.decompress(code.compress(torch.tensor([8e-6, 1e-6, -2e-6, 3e-6])), (4,)).gt(7e-6).tolist()
        [True, False, False, False]

    Source:
        Apache MXNet, "Gradient Compression" (pull request 8662, 2017), after N. Strom, "Scalable Distributed DNN
        Training Using Commodity GPU Cloud Computing", INTERSPEECH 2015.
    """

    threshold: float | Literal["auto"] = 0.5
    wire: Literal["dense", "adaptive"] = "dense"
    target: float = 0.1

    name = "twobit"
    reference = "Apache MXNet gradient compression, 2017; N. Strom, INTERSPEECH 2015"
    feedback = "built-in"
    alignment = 16

    def __post_init__(self) -> None:
        auto_threshold.require_threshold("TwoBit.threshold", self.threshold, above=True)
        require(self.wire in ("dense", "adaptive"), "TwoBit.wire", "'dense' or 'adaptive'", self.wire)
        auto_threshold.require_target("TwoBit.target", self.target)

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        """Return whether elements are encoded independently, as they are unless the threshold is "auto"."""
        return self.threshold != AUTO

    @property
    def advice(self) -> int:
        return auto_threshold.WISHES if self.threshold == AUTO else 0

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        """Return whether the payload has a fixed size, as the dense wire has."""
        return self.wire == "dense"

    @property
    def takes_pieces(self) -> bool:
        """Return whether pieces can be encoded, as with the dense wire."""
        return self.wire == "dense"

    def layout(self, shape: Sequence[int]) -> Layout:
        n, own = math.prod(shape), auto_threshold.fields_of(self.threshold)
        if not self.fixed_size:
            return stream_layout(n, *own)
        return Layout((*own, Field("codes", torch.uint8, 4 * -(-n // 16))))

    def init_state(self, shape: Sequence[int], key: Key, device: torch.device | None = None) -> State:
        return auto_threshold.state_of(self.threshold, device)

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        codes = payload[-1] if self.fixed_size else codes_for(x)
        if self.threshold == AUTO:
            dithered(x, codes, payload[-2], state, self.target)
        else:
            ops.twobit_encode(x, codes, self.threshold)
        if not self.fixed_size:
            shrink(codes, payload, x.numel())

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        fixed = self.fixed_size
        codes = payload[-1] if fixed else codes_for(grad)
        if self.threshold == AUTO:
            dithered_feedback(grad, residual, codes, payload[-2], state, self.target, status)
        else:
            ops.twobit_encode_feedback(grad, residual, codes, self.threshold, status)
        if not fixed:
            shrink(codes, payload, grad.numel())

    def add_rows(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool) -> None:
        threshold, steps = auto_threshold.steps_of(self.threshold, payloads)
        if self.fixed_size:
            ops.twobit_add_decoded(payloads[-1], out, threshold, scale, steps, fresh)
        else:
            if fresh:
                kernels.fill_where(out, 0.0)
            add_streams(payloads, out, threshold, scale, steps)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse a stream that is empty or damaged, or in another form than the encoder would choose.

        Raises:
            WireError: the stream is empty, damaged or not in the form of the encoder, or its threshold is negative or
                not finite. Every dense payload of a fixed threshold is accepted.
        """
        auto_threshold.check_carried(self.name, self.threshold, payload)
        if not self.fixed_size:
            check_stream(self.name, payload, shape)
