"""A fixed threshold with a residual, as its inventor sent it: only what is beyond it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gradwire import ops
from gradwire.compressors._ternary import add_streams, check_stream, codes_for, shrink, stream_layout
from gradwire.compressors.base import Compressor, Feedback
from gradwire.errors import is_float32, require
from gradwire.types import Key, Layout, Payload, State

__all__ = ["Strom"]


@dataclass(frozen=True)
class Strom(Compressor):
    """Send +t or -t for the elements beyond a threshold, with their places, and keep the rest.

    r = residual + g;  r > t: +t, residual = r - t;  r < -t: -t, residual = r + t;  else nothing is sent.

    The payload is of variable size. Where more than about a fifth of the elements fire it goes over to a bitmap and
    then to 2 bits an element, so it is never more than a byte larger than that of ``twobit``.

    Args:
        threshold: t > 0, in the gradient's unit. A residual drains by at most t a step: too small a threshold and
            large gradients queue up and everything fires, too large and small ones wait long.
        coding: "gaps": Golomb-Rice codes, 8 bits and a sign each where 1 % fire. "words": the paper's 32 bits, simple
            to read: twice the index, plus 1 where it is +t.

    Raises:
        ConfigError: the threshold is not a positive finite number in float32, or the coding is neither of these.

    Example:
        >>> code = Strom(threshold=1.0)
        >>> code.decompress(code.compress(torch.tensor([0.5, -1.2, 2.7, 1.0])), (4,)).tolist()
        [0.0, -1.0, 1.0, 0.0]

    Source:
        N. Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", INTERSPEECH 2015.
    """

    threshold: float = 0.01
    coding: Literal["gaps", "words"] = "gaps"

    name = "strom"
    family = "hybrid"
    reference = "N. Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, INTERSPEECH 2015"
    elementwise = True
    fixed_size = False

    def __post_init__(self) -> None:
        ok = is_float32(self.threshold) and self.threshold > 0
        require(ok, "Strom.threshold", "a finite number > 0 in float32", self.threshold)
        require(self.coding in ("gaps", "words"), "Strom.coding", "'gaps' or 'words'", self.coding)

    @property
    def feedback(self) -> Feedback:
        return "built-in"

    @property
    def alignment(self) -> int:
        return 16

    def layout(self, shape: Sequence[int]) -> Layout:
        return stream_layout(math.prod(shape))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        codes = codes_for(x)
        ops.strom_encode(x.view(-1), codes, self.threshold)
        shrink(codes, payload, x.numel(), self.coding == "words")

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        codes = codes_for(grad)
        ops.strom_encode_feedback(grad.view(-1), residual.view(-1), codes, self.threshold, status)
        shrink(codes, payload, grad.numel(), self.coding == "words")

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_decoded_many(tuple(field.unsqueeze(0) for field in payload), out, scale)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        add_streams(payloads, out, self.threshold, scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse a stream that says nothing, or says it in another form than the encoder would.

        Raises:
            WireError: it does.
        """
        check_stream(self.name, payload, shape, self.coding == "words")
