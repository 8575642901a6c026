"""Clipping quantiser of LPC-SVRG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gradwire.compressors.base import Feedback
from gradwire.compressors.decoders import FreshDecoder
from gradwire.compressors.levels.rounding import Grid, linf_omega
from gradwire.errors import is_float32, is_int, require
from gradwire.vocabulary import Key, Layout, Payload, State

__all__ = ["LpcSvrg"]


@dataclass(frozen=True)
class LpcSvrg(FreshDecoder):
    """Round at random to a uniform grid over a part of the range, and cut off what lies beyond.

    D = clip max|x| / s, s = 2^(bits - 1) - 1;  x in [kD, (k + 1)D]: (k + 1)D with probability x / D - k, else kD;
    |x| > sD: sign(x) sD.

    A ``clip`` below 1 trades a bias on the few largest elements for a finer grid under all others. No element is off by
    more than max(clip / s, 1 - clip) max|x|, so where that is below 1 a residual stays bounded.

    This is the quantiser alone. The paper applies it to the variance-reduced difference of two gradients, which is the
    optimizer's affair; its grid has one more level at the negative end, which is not used here, so that -x is treated
    as x is. (The paper was not at hand; definition after secondary sources.)

    Args:
        bits: bits for each element, 2 to 8.
        clip: part of the range that is kept, in (0, 1]. 1: right on average. Below: feedback is needed.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> import torch
        >>> code = LpcSvrg(bits=3, clip=0.5)
        >>> code.layout((16,)).nbytes
        10
        >>> code.decompress(code.compress(torch.tensor([6.0, -2.0, 1.0])), (3,)).tolist()
        [3.0, -2.0, 1.0]

    Source:
        Y. Yu, J. Wu, J. Huang, "Exploring Fast and Communication-Efficient Algorithms in Large-Scale Distributed
        Networks", AISTATS 2019.
    """

    bits: int = 8
    clip: float = 1.0

    name = "lpc_svrg"
    reference = "Y. Yu, J. Wu, J. Huang, LPC-SVRG, AISTATS 2019"
    random = True
    takes_pieces = True
    alignment = 16

    def __post_init__(self) -> None:
        require(is_int(self.bits, 2, 8), "LpcSvrg.bits", "an integer in [2, 8]", self.bits)
        require(is_float32(self.clip) and 0 < self.clip <= 1, "LpcSvrg.clip", "in (0, 1]", self.clip)

    @property
    def _grid(self) -> Grid:
        return Grid(self.bits, (1 << (self.bits - 1)) - 1, "largest", self.clip)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.clip == 1

    @property
    def fine(self) -> bool:
        return self.bits >= 4

    @property
    def feedback(self) -> Feedback:
        if self.clip < 1:
            return "required"
        return "optional" if self.bits > 2 else "unsafe"

    @property
    def bounded(self) -> str:
        return "QSGD(bits=2, block=None, scaled=True)"

    def omega(self, n: int) -> float:
        return linf_omega(max(1, n), self._grid.levels) if self.unbiased else math.inf

    def layout(self, shape: Sequence[int]) -> Layout:
        return self._grid.layout(shape)

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        self._grid.encode(x.view(-1), payload, key)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        self._grid.encode_feedback(grad.view(-1), residual.view(-1), payload, key, status)

    def add_rows(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool) -> None:
        self._grid.add_decoded(payloads, out.view(-1), scale, fresh=fresh)
