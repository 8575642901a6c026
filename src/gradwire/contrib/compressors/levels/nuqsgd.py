"""Random rounding to powers of two of each block's norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Feedback
from gradwire.compressors.decoders import FreshDecoder
from gradwire.compressors.levels import ops
from gradwire.errors import is_int, require
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["NUQSGD"]


@dataclass(frozen=True)
class NUQSGD(FreshDecoder):
    """Round each element at random to one of the shares 0, 2^-s, ..., 1/2, 1 of its block's norm N.

    a = |x| / N between neighbouring levels l < h: C(x) = sign(x) N h with probability (a - l) / (h - l), else
    sign(x) N l;  s = 2^(bits - 1) - 2.

    With y = 2^-s sqrt(B) for blocks of B elements: omega = 1/8 + 2 y^2 / 9 for y <= 9/4, else y - 1. The first term is
    the worst between two powers, the second that of the elements below the smallest level. So where blocks are small
    enough for their bits (1024 at 4, 16 at 3) the noise stays below the signal, under either norm, and error feedback
    is harmless; elsewhere it is unsafe.

    Args:
        bits: bits for each element, 2 to 8; one is the sign. One more halves the exponent of the smallest level.
        block: elements that share a norm, a multiple of 16 in [16, 65536]; each costs 32 bits.
        norm: "l2" as in the paper, or "linf", under which a few more levels are used.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = NUQSGD(bits=4, norm="linf")
        >>> code.layout((1024,)).nbytes
        516
        >>> code.decompress(code.compress(torch.tensor([8.0, -4.0, 0.125, 0.0])), (4,)).tolist()
        [8.0, -4.0, 0.125, 0.0]

    Source:
        A. Ramezani-Kebrya, F. Faghri, I. Markov, V. Aksenov, D. Alistarh, D. M. Roy, "NUQSGD: Provably
        Communication-efficient Data-parallel SGD via Nonuniform Quantization", JMLR 22(114), 2021.
    """

    bits: int = 4
    block: int = 1024
    norm: Literal["l2", "linf"] = "l2"

    name = "nuqsgd"
    reference = "A. Ramezani-Kebrya et al., NUQSGD, JMLR 2021"
    unbiased = True
    random = True
    takes_pieces = True

    def __post_init__(self) -> None:
        require(is_int(self.bits, 2, 8), "NUQSGD.bits", "an integer in [2, 8]", self.bits)
        require(is_int(self.block, 16, 65536, of=16), "NUQSGD.block", "a multiple of 16 in [16, 65536]", self.block)
        require(self.norm in ("l2", "linf"), "NUQSGD.norm", "'l2' or 'linf'", self.norm)

    @property
    def fine(self) -> bool:
        return self.bits >= 4

    @property
    def feedback(self) -> Feedback:
        return "optional" if self.contraction else "unsafe"

    @property
    def bounded(self) -> str:
        smaller = replace(self, block=16)
        return repr(smaller) if capabilities.contraction(smaller) else f"QSGD(bits={self.bits}, scaled=True)"

    @property
    def contraction(self) -> bool:
        return self.omega(self.block) < 1

    def delta(self, n: int) -> float:
        return max(0.0, 1.0 - self.omega(n))

    def omega(self, n: int) -> float:
        y = math.ldexp(math.sqrt(max(1, min(self.block, n))), 2 - (1 << (self.bits - 1)))
        return 1 / 8 + 2 * y * y / 9 if y <= 9 / 4 else y - 1

    @property
    def alignment(self) -> int:
        return self.block

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        blocks, code_bytes = -(-n // self.block), -(-n * self.bits // 8)
        return Layout((Field("norms", torch.float32, blocks), Field("codes", torch.uint8, code_bytes)))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        norms, codes = payload
        ops.qsgd_encode(x, norms, codes, self.bits, self.block, self.norm, key.stream(), key.step, grid="powers")

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        norms, codes = payload
        ops.qsgd_encode_feedback(
            grad,
            residual,
            norms,
            codes,
            self.bits,
            self.block,
            self.norm,
            key.stream(),
            key.step,
            status,
            grid="powers",
        )

    def add_rows(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool) -> None:
        norms, codes = payloads
        ops.qsgd_add_decoded(norms, codes, out, self.bits, self.block, scale, grid="powers", fresh=fresh)
