"""Random rounding to a few levels of each block's norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, cast

import torch
from torch import Tensor

from gradwire.compressors.base import Feedback
from gradwire.compressors.decoders import TritDecoder
from gradwire.compressors.levels import ops
from gradwire.compressors.levels.rounding import Grid, linf_omega, times, uniform_omega
from gradwire.errors import is_int, require
from gradwire.kernels import Each
from gradwire.kernels.trits import room_for, trit_bytes
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["QSGD"]


@dataclass(frozen=True)
class QSGD(TritDecoder):
    """Round each element at random to one of 2s + 1 levels of its block's norm N, so that the mean is right.

    a = s |x| / N;  l = floor(a + u), u uniform on (0, 1);  C(x) = sign(x) l N / s;  s = 2^(bits - 1) - 1.

    The variance factor for blocks of B elements follows from E(C(x) - x)^2 = (N/s)^2 p(1 - p), p the fraction of a:

        l2    omega = min(B / (4 s^2), sqrt(B) / s)
        linf  omega = (sqrt(1 + (B - 1) / s^2) - 1) / 2, attained by (1, t, ..., t) with t = 1 / (2 s (1 + omega))

    On Gaussian gradients linf does far better than its bound: 0.036 at 4 bits and B = 512, where l2 has 1.58.

    Error feedback is "optional" where the residual provably stays bounded: omega < 1 (a contraction in expectation),
    or linf with 3 bits or more, where no element is off by more than N/s, so gradients of magnitude up to G leave a
    residual below G / (s - 1). Elsewhere it is "unsafe": the residual feeds its own norm and grows.

    ``scaled`` decodes C(x) / (1 + omega): no longer right on average, but a contraction with delta = 1 / (1 + omega)
    whatever omega is, so that error feedback is safe and needed. It is the way to use few bits, or one norm, with
    feedback.

    Args:
        bits: bits for each element, 2 to 8; one is the sign. Fewer bits: fewer bytes, more noise.
        block: elements that share a norm, a multiple of 16 in [16, 65536]; each costs 32 bits. Smaller: less noise.
            None: one norm for the whole tensor, or shard, at the price of another pass over it.
        norm: "linf", or "l2" as in the paper's theory.
        levels: s, at most 2^(bits - 1) - 1; None: as many as that.
        scaled: true: decode C(x) / (1 + omega), as above.
        packing: "bits". Or "trits" with 2 bits: five codes to a byte, 1.6 bits each, for a pass over the codes.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = QSGD(bits=4, block=16)
        >>> code.layout((32,)).nbytes
        24
        >>> code.decompress(code.compress(torch.tensor([7.0, -3.0, 0.0])), (3,)).tolist()
        [7.0, -3.0, 0.0]

    Source:
        D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
        Quantization and Encoding", NeurIPS 2017.
    """

    bits: int = 4
    block: int | None = 512
    norm: Literal["linf", "l2"] = "linf"
    levels: int | None = None
    scaled: bool = False
    packing: Literal["bits", "trits"] = field(default="bits", metadata={"later": True})

    name = "qsgd"
    reference = "D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, QSGD, NeurIPS 2017"
    random = True

    def __post_init__(self) -> None:
        require(is_int(self.bits, 2, 8), "QSGD.bits", "an integer in [2, 8]", self.bits)
        whole = self.block is None or is_int(self.block, 16, 65536, of=16)
        require(whole, "QSGD.block", "a multiple of 16 in [16, 65536] or None", self.block)
        require(self.norm in ("linf", "l2"), "QSGD.norm", "'linf' or 'l2'", self.norm)
        fits = self.levels is None or is_int(self.levels, 1, self._most)
        require(fits, "QSGD.levels", f"an integer in [1, {self._most}] or None at {self.bits} bits", self.levels)
        require(isinstance(self.scaled, bool), "QSGD.scaled", "True or False", self.scaled)
        require(self.packing in ("bits", "trits"), "QSGD.packing", "'bits' or 'trits'", self.packing)
        require(self.packing == "bits" or self.bits == 2, "QSGD.packing", f"'bits' at {self.bits} bits", self.packing)

    @property
    def _most(self) -> int:
        return int((1 << (self.bits - 1)) - 1)

    @property
    def top(self) -> int:
        """The number s of levels above zero."""
        return self.levels or self._most

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return not self.scaled

    @property
    def takes_pieces(self) -> bool:
        """Return whether pieces can be encoded, as they can in bits."""
        return self.packing == "bits"

    @property
    def feedback(self) -> Feedback:
        if self.scaled:
            return "required"
        shrinks = self.norm == "linf" and self.top > 1
        return "optional" if shrinks or self.contraction else "unsafe"

    @property
    def fine(self) -> bool:
        return self.norm == "linf" and self.top >= 7

    @property
    def bounded(self) -> str:
        return repr(replace(self, scaled=True))

    @property
    def contraction(self) -> bool:
        return self.scaled or (self.block is not None and self._variance(self.block) < 1)

    def delta(self, n: int) -> float:
        return self._shrink(n) if self.scaled else max(0.0, 1.0 - self._variance(n))

    def omega(self, n: int) -> float:
        return math.inf if self.scaled else self._variance(n)

    def _variance(self, n: int) -> float:
        size = max(1, n if self.block is None else min(self.block, n))
        return linf_omega(size, self.top) if self.norm == "linf" else uniform_omega(size, self.top)

    def _shrink(self, n: int) -> float:
        """The factor that shrinks the decoded values of ``n`` elements; of pieces, that of each."""
        if not self.scaled:
            return 1.0
        many: object = n
        if isinstance(many, Each):
            return self._shrinks.setdefault(n, cast(float, Each(map(self._shrink, many))))
        return 1 / (1 + self._variance(n))

    @cached_property
    def _shrinks(self) -> dict[int, float]:
        """The factors of pieces of so many elements: one object for equal ones."""
        return {}

    @property
    def alignment(self) -> int:
        return self.block or 16 if self.packing == "bits" else math.lcm(self.block or 16, 80)

    def _grid(self, n: int) -> Grid:
        return Grid(self.bits, self.top, "largest" if self.norm == "linf" else "length", shrink=self._shrink(n))

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        blocks = min(n, 1) if self.block is None else -(-n // self.block)
        code_bytes = trit_bytes(n) if self.packing == "trits" else -(-n * self.bits // 8)
        return Layout((Field("norms", torch.float32, blocks), Field("codes", torch.uint8, code_bytes)))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        norms, packed = payload
        codes = room_for(packed, x.numel(), self.packing)
        if self.block is None:
            self._grid(x.numel()).encode(x, (norms, codes), key)
        else:
            ops.qsgd_encode(x, norms, codes, self.bits, self.block, self.norm, key.stream(), key.step, self.top)
        self.pack(codes, packed)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        norms, packed = payload
        codes = room_for(packed, grad.numel(), self.packing)
        if self.block is None:
            self._grid(grad.numel()).encode_feedback(grad, residual, (norms, codes), key, status)
        else:
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
                self._shrink(grad.numel()),
                self.top,
            )
        self.pack(codes, packed)

    def add_rows(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool) -> None:
        if self.block is None:
            self._grid(out.numel()).add_decoded(payloads, out, scale, fresh=fresh)
            return
        norms, codes = payloads
        shrunk = times(self._shrink(out.numel()), scale)
        ops.qsgd_add_decoded(norms, codes, out, self.bits, self.block, shrunk, self.top, fresh=fresh)
