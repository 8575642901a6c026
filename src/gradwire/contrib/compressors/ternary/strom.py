"""Fixed threshold with a residual, sent as its inventor did: only the elements beyond it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.compressors import auto_threshold
from gradwire.compressors.auto_threshold import AUTO
from gradwire.compressors.decoders import ManyDecoder
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
from gradwire.vocabulary import Key, Layout, Payload, State

__all__ = ["Strom"]


@dataclass(frozen=True)
class Strom(ManyDecoder):
    """Send +t or -t for the elements beyond a threshold, with their indices, and keep the rest.

    r = residual + g;  r > t: +t, residual = r - t;  r < -t: -t, residual = r + t;  else nothing is sent.

    The payload is of variable size. Where more than about a fifth of the elements fire it goes over to a bitmap and
    then to 2 bits an element, so it is never more than a byte larger than that of ``twobit``.

    Args:
        threshold: t > 0, in the gradient's unit. A residual drains by at most t a step: too small a threshold and
            large gradients queue up and everything fires, too large and small ones wait long. "auto": as for
            ``twobit``; it keeps the share that fires, and so the bytes, near ``target``.
        coding: "gaps": Golomb-Rice codes, 8 bits and a sign each where 1 % fire. "words": the paper's 32 bits, simple
            to read: twice the index, plus 1 where it is +t.
        target: share of the elements that fire in a step with "auto", in (0, 0.5]: what is sent grows with it.

    Raises:
        ConfigError: the threshold is neither a positive finite number in float32 nor "auto", the coding is neither of
            these, or a target out of range.

    Example:
        >>> code = Strom(threshold=1.0)
        >>> code.decompress(code.compress(torch.tensor([0.5, -1.2, 2.7, 1.0])), (4,)).tolist()
        [0.0, -1.0, 1.0, 0.0]

    Source:
        N. Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", INTERSPEECH 2015.
    """

    threshold: float | Literal["auto"] = 0.01
    coding: Literal["gaps", "words"] = "gaps"
    target: float = 0.02

    name = "strom"
    family = "hybrid"
    reference = "N. Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, INTERSPEECH 2015"
    fixed_size = False
    feedback = "built-in"
    alignment = 16

    def __post_init__(self) -> None:
        auto_threshold.require_threshold("Strom.threshold", self.threshold, above=True)
        require(self.coding in ("gaps", "words"), "Strom.coding", "'gaps' or 'words'", self.coding)
        auto_threshold.require_target("Strom.target", self.target)

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        """Return whether elements are encoded independently, as they are unless the threshold is "auto"."""
        return self.threshold != AUTO

    @property
    def advice(self) -> int:
        return auto_threshold.WISHES if self.threshold == AUTO else 0

    def layout(self, shape: Sequence[int]) -> Layout:
        return stream_layout(math.prod(shape), *auto_threshold.fields_of(self.threshold))

    def init_state(self, shape: Sequence[int], key: Key, device: torch.device | None = None) -> State:
        return auto_threshold.state_of(self.threshold, device)

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        codes = codes_for(x)
        if self.threshold == AUTO:
            dithered(x, codes, payload[-2], state, self.target)
        else:
            ops.twobit_encode(x, codes, self.threshold, strict=True)
        shrink(codes, payload, x.numel(), self.coding == "words")

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        codes = codes_for(grad)
        if self.threshold == AUTO:
            dithered_feedback(grad, residual, codes, payload[-2], state, self.target, status)
        else:
            ops.twobit_encode_feedback(grad, residual, codes, self.threshold, status, strict=True)
        shrink(codes, payload, grad.numel(), self.coding == "words")

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        threshold, steps = auto_threshold.steps_of(self.threshold, payloads)
        add_streams(payloads, out, threshold, scale, steps)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse a stream that is empty or damaged, or in another form than the encoder would choose.

        Raises:
            WireError: the stream is empty, damaged or not in the form of the encoder, or its threshold is negative or
                not finite.
        """
        auto_threshold.check_carried(self.name, self.threshold, payload)
        check_stream(self.name, payload, shape, self.coding == "words")
