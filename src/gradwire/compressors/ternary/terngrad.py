"""Ternary codes with probabilities that make the mean right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from gradwire.compressors.decoders import TritDecoder
from gradwire.compressors.levels.rounding import Grid
from gradwire.errors import is_float32, require
from gradwire.kernels.trits import room_for, trit_bytes
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["TernGrad"]


@dataclass(frozen=True)
class TernGrad(TritDecoder):
    """Send S, 0 or -S for each element: 2 bits an element, or 1.6.

    c = clip * deviation(x);  y = x cut off at -c and c;  S = max|y|;  C(x) = S sign(x) b, b = 1 with probability
    |y| / S, else 0. (The paper prints that probability without the magnitude.)

    Right on average for y. E|C(x) - y|^2 = S |y|_1 - |y|^2, so without clipping omega = (sqrt(n) - 1) / 2, attained by
    (1, t, ..., t) with t = 1 / (1 + sqrt(n)); clipped, normal gradients have 1.0. The scale is the sender's own; that
    of the largest worker, as in the authors' code, is agreed on by ``global_qsgd``. With a scale for each block, which
    has far less noise, it is ``QSGD(bits=2)``.

    Error feedback is unsafe: the noise is larger than the signal. ``QSGD(bits=2, block=None, scaled=True)`` is the
    ternary code with feedback.

    Args:
        clip: bound in standard deviations; 2.5 as in the paper, 0 for none. Lower: less noise, more bias on the largest
            elements. A tensor of equal elements is not clipped, whatever its deviation of zero says.
        packing: "bits": four codes to a byte. "trits": five to a byte, a fifth smaller, for a pass over the codes.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = TernGrad()
        >>> code.layout((1000,)).nbytes
        254
        >>> code.decompress(code.compress(torch.tensor([0.5, -0.5, 0.0, 0.5])), (4,)).tolist()
        [0.5, -0.5, 0.0, 0.5]

    Source:
        W. Wen, C. Xu, F. Yan, C. Wu, Y. Wang, Y. Chen, H. Li, "TernGrad: Ternary Gradients to Reduce Communication in
        Distributed Deep Learning", NeurIPS 2017.
    """

    clip: float = 2.5
    packing: Literal["bits", "trits"] = "bits"

    name = "terngrad"
    reference = "W. Wen et al., TernGrad, NeurIPS 2017"
    random = True
    feedback = "unsafe"

    def __post_init__(self) -> None:
        require(is_float32(self.clip) and self.clip >= 0, "TernGrad.clip", "a finite number >= 0", self.clip)
        require(self.packing in ("bits", "trits"), "TernGrad.packing", "'bits' or 'trits'", self.packing)

    @cached_property
    def _grid(self) -> Grid:
        return Grid(2, 1, "clipped", self.clip)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.clip == 0

    @property
    def takes_pieces(self) -> bool:
        """Return whether pieces can be encoded, as they can in bits."""
        return self.packing == "bits"

    @property
    def bounded(self) -> str:
        return "QSGD(bits=2, block=None, scaled=True)"

    def omega(self, n: int) -> float:
        return (math.sqrt(max(1, n)) - 1) / 2 if self.unbiased else math.inf

    @property
    def alignment(self) -> int:
        return 16 if self.packing == "bits" else 80

    def layout(self, shape: Sequence[int]) -> Layout:
        norm, codes = self._grid.layout(shape).fields
        if self.packing == "trits":
            codes = Field("codes", torch.uint8, trit_bytes(math.prod(shape)))
        return Layout((norm, codes))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        norm, codes = payload
        room = room_for(codes, x.numel(), self.packing)
        self._grid.encode(x, (norm, room), key)
        self.pack(room, codes)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        norm, codes = payload
        room = room_for(codes, grad.numel(), self.packing)
        self._grid.encode_feedback(grad, residual, (norm, room), key, status)
        self.pack(room, codes)

    def add_rows(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool) -> None:
        self._grid.add_decoded(payloads, out, scale, fresh=fresh)
