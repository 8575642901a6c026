"""Rounding to four bits an element, to nearest, with a running mean of the errors in eight bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.decoders import FreshDecoder
from gradwire.compressors.levels import ops
from gradwire.errors import is_int, require
from gradwire.kernels.stored import StoredForm, form_of
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["LoCo"]

TOP = 7
"""Levels above zero."""

ROUNDING = 1.0 + 2.0**-16
"""Room for the float32 arithmetic in the bounds."""


@dataclass(frozen=True)
class LoCo(FreshDecoder):
    """Round each element to the nearest of 15 levels of its block: 4 bits and, for a block, 32.

    C(x) = q N / 7,  q = round(7 x / N),  N the largest magnitude of the block.

    What the rounding loses is compensated by a running mean of earlier errors, which memory ``averaged_error`` keeps in
    8 bits: x = g + e, e = (1 - beta) e + beta (x - C(x)), and e = 0 from time to time. So a worker keeps 1 byte an
    element where a residual takes 4, and one pass reads and writes the gradient, the errors and the payload. Another
    beta is the memory's: ``memory=AveragedError(beta=0.5)``.

    Args:
        block: elements that share a scale, a multiple of 16 in [16, 1024]. Smaller: less is lost, and 32 bits for each.
            The memory's blocks must be as long, or the errors are read, added and written in passes of their own.

    Raises:
        ConfigError: the block is outside its range.

    Example:
        >>> code = LoCo(block=16)
        >>> code.layout((32,)).nbytes
        24
        >>> code.decompress(code.compress(torch.tensor([7.0, -3.4, 0.4])), (3,)).tolist()
        [7.0, -3.0, 0.0]

    Source:
        X. Xie, Z. Lin, K.-C. Toh, P. Zhou, "LoCo: Low-Bit Communication Adaptor for Large-scale Model Training", 2024;
        blocks of their own scales as in DeepSpeed's ZeRO++.
    """

    block: int = 256

    name = "loco"
    family = "quantisation"
    reference = "X. Xie, Z. Lin, K.-C. Toh, P. Zhou, LoCo: Low-Bit Communication Adaptor, 2024"
    memory = "averaged_error"
    fine = True
    takes_pieces = True
    feedback = "required"

    def __post_init__(self) -> None:
        require(is_int(self.block, 16, 1024, of=16), "LoCo.block", "a multiple of 16 in [16, 1024]", self.block)

    def delta(self, n: int) -> float:
        """The contraction constant: in a block of B one element is exact, and the others lose at most u N, u = 1 / 14,
        and never more than their value.

        So of |x|^2 >= N^2 + E at most E <= (B - 1) u^2 N^2 is lost.
        """
        lost = max(0, min(self.block, n) - 1) * (ROUNDING * 0.5 / TOP) ** 2
        return 1.0 - lost / (1.0 + lost) - (ROUNDING - 1.0)

    @property
    def alignment(self) -> int:
        return self.block

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        return Layout((Field("norms", torch.float32, -(-n // self.block)), Field("codes", torch.uint8, -(-n // 2))))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        norms, codes = payload
        ops.loco_encode(x.view(-1), norms, codes, self.block)

    def encode_averaged(
        self,
        grad: Tensor,
        error: Tensor,
        weight: float,
        share: float,
        payload: Payload,
        state: State,
        key: Key,
        status: Tensor,
        scale: float = 1.0,
    ) -> None:
        if scale != 1.0 or form_of(error) != StoredForm(torch.uint8, self.block):
            capabilities.encode_averaged.default(self, grad, error, weight, share, payload, state, key, status, scale)
            return
        norms, codes = payload
        ops.loco_encode_averaged(grad.view(-1), error.view(-1), norms, codes, self.block, weight, share, status)

    def add_rows(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool) -> None:
        norms, codes = payloads
        ops.qsgd_add_decoded(norms, codes, out.view(-1), 4, self.block, scale, TOP, fresh=fresh)
