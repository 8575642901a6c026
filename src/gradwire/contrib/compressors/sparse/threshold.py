"""Sparsification that sends everything above a threshold, with its value."""

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
from gradwire.contrib.compressors.sparse import ops
from gradwire.errors import WireError
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["Threshold"]


@dataclass(frozen=True)
class Threshold(ManyDecoder):
    """Send the elements with |x| > v, exactly, and keep the rest.

    C(x) = x where |x| > v, 0 elsewhere:  |C(x) - x|^2 <= v^2 (n - k), k elements sent.

    How many are sent follows from the values, so the payload is of variable size: 6 bytes an element that is sent, or 4
    and a bit for each of the n, or 4 n, whichever is smallest. A NaN is sent, so it reaches every rank. Nothing at all
    may be sent; zeros never are.

    Args:
        v: v >= 0, in the gradient's unit: twice and more of its typical magnitude, or nearly everything is sent. 0
            sends what is not 0, which suits gradients of embeddings. "auto": chosen in every step from a sample of the
            elements, so that the share ``target`` is sent: |x_i| >= l d_i, l and d as for ``twobit``. It needs a
            residual, as every method that leaves out what is small.
        target: share of the elements that is sent with "auto", in (0, 0.5].

    Raises:
        ConfigError: v is neither a number >= 0 in float32 nor "auto", or a target out of range.

    Example:
        >>> code = Threshold(v=2.0)
        >>> code.decompress(code.compress(torch.tensor([1.0, -5.0, 2.0, -2.5])), (4,)).tolist()
        [0.0, -5.0, 0.0, -2.5]

    Source:
        A. Dutta, E. H. Bergou, A. M. Abdelmoniem, C.-Y. Ho, A. N. Sahu, M. Canini, P. Kalnis, "On the Discrepancy
        between the Theoretical Analysis and Practical Implementations of Compressed Communication for Distributed Deep
        Learning", AAAI 2020.
    """

    v: float | Literal["auto"] = 0.01
    target: float = 0.02

    name = "threshold"
    family = "sparsification"
    reference = "A. Dutta et al., On the Discrepancy between Theory and Practice of Compressed Communication, AAAI 2020"
    fixed_size = False
    feedback = "required"

    def __post_init__(self) -> None:
        auto_threshold.require_threshold("Threshold.v", self.v)
        auto_threshold.require_target("Threshold.target", self.target)

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        """Return whether elements are encoded independently, as they are unless the threshold is "auto"."""
        return self.v != AUTO

    @property
    def contraction(self) -> bool:
        """Return whether the method is a contraction, as it is where all that is not 0 is sent."""
        return self.v == 0

    def delta(self, n: int) -> float:
        return 1.0 if self.contraction else 0.0

    @property
    def advice(self) -> int:
        return auto_threshold.WISHES if self.v == AUTO else 0

    def layout(self, shape: Sequence[int]) -> Layout:
        room = ops.capacity(math.prod(shape))
        return Layout((Field("used", torch.int32, 1), Field("stream", torch.uint8, room)))

    def init_state(self, shape: Sequence[int], key: Key, device: torch.device | None = None) -> State:
        return auto_threshold.state_of(self.v, device)

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        used, stream = payload
        ops.threshold_encode(x, used, stream, *auto_threshold.least_of(self.v, x, state, self.target))

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        used, stream = payload
        v, level = auto_threshold.least_of(self.v, grad, state, self.target, residual)
        ops.threshold_encode_feedback(grad, residual, used, stream, v, status, level)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        ops.threshold_add_decoded(payloads[1], out, scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse a stream that differs from the encoding of the elements it holds.

        Raises:
            WireError: the stream has an unknown form, a count that does not fit, or a value that is not above the
                threshold.
        """
        used, stream = payload
        n = math.prod(shape)
        said = torch.zeros(n, dtype=torch.float32, device=stream.device)
        ops.threshold_add_decoded(stream.unsqueeze(0), said, 1.0)
        # The stream that came may be as long as what is in use of it, and that written again needs all the room.
        size, again = torch.empty_like(used), stream.new_empty(ops.capacity(n))
        # The threshold of "auto" is not in the payload; that no zero is sent is all that can be checked.
        ops.threshold_encode(said, size, again, 0.0 if self.v == AUTO else self.v)
        nbytes = int(size)
        if int(used) != nbytes or not torch.equal(again[:nbytes], stream[:nbytes]):
            raise WireError(f"threshold stream of {int(used)} bytes is not as written: what it says takes {nbytes}")
