"""Rotated blocks, rounded to the nearest values of a normal quantiser, with a scale that makes the mean right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import cast

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Feedback
from gradwire.compressors.decoders import ManyDecoder
from gradwire.compressors.transforms import ops
from gradwire.compressors.transforms._eden import SMALLEST, STEP, blocks_of, code_bytes, kept, parts
from gradwire.errors import is_float32, is_int, require
from gradwire.kernels import Each, philox
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["EDEN"]

LEFT = {
    0.125: 0.878315,
    0.25: 0.769055,
    0.5: 0.575225,
    1: 0.363380228,
    2: 0.117481848,
    3: 0.034547761,
    4: 0.009501008,
}
"""The mean square error for a normal variable of variance 1, by bits. Below 1 as measured, with 200,000 groups."""

_GROUPS = {0.5: 16, 0.25: 32, 0.125: 64}
"""Coordinates that share a byte."""


@dataclass(frozen=True)
class EDEN(ManyDecoder):
    """Rotate each block at random, round to the nearest of 2^bits values, and scale so that the mean is right.

    y = R x, R two rotations H D / sqrt(B), D random signs, H the Hadamard matrix;  c = the nearest centroid of y / r,
    r the root mean square of y, times r;  C(x) = (|y|^2 / <y, c>) R' c.

    The coordinates of any gradient are nearly normal after the rotations, so the centroids are those of Lloyd and Max
    for a normal variable. The scale makes <C(x), x> = |x|^2 in every draw, and by symmetry what else C(x) has vanishes
    on average: if all rotations are equally likely. Hadamard matrices with random signs are nearly as good. After one
    of them a large element hides the small ones beside it in every draw; after two it does not. What bias was left was
    at most 1 % of the gradient with blocks of 64 (up to 4 % where two elements of a block hold all of it, 3 % if a
    quarter of the coordinates is sent), and too small to be measured with blocks of 256 and more.

    The variance is nearly the same for any gradient: D / (1 - D), D the error of the centroids, which is 0.571 with 1
    bit, 0.133 with 2, 0.036 with 3 and 0.0096 with 4. ``omega`` adds 4 / B for the rotations, as measured. Errors of
    ranks are independent: a seed of 32 bits travels with each payload.

    Below 1 bit 16, 32 or 64 coordinates share a byte, which says which of 256 words of +1 and -1 has the largest
    product with them: with 0.5 the Nordstrom-Robinson code, which adds 1.35, with 0.25 and 0.125 subsets of the
    second-order Reed-Muller codes, which add 3.33 and 7.22. The paper sends fewer coordinates instead: with
    ``fraction`` p only so many of each block are sent, the first ones, for the second random signs make these as good
    as any other choice. Then |y|^2 and <y, c> are sums over what is sent, C(x) is divided by p, and omega =
    1 / (p (1 - D)) - 1: 2.14 for half of the signs. Of two forms with equal bytes the one with fewer bits adds less.
    From omega = 1 on error feedback is "unsafe".

    ``scaled`` decodes C(x) / (1 + omega): no longer right on average, but a contraction with delta = 1 / (1 + omega)
    for any bits, so that it can and must have error feedback. Its residual is noise in all elements, and not what is
    small: for steps of an optimizer the largest 1 % were markedly better.

    Of a tensor's last block that is not whole the largest powers of two become blocks of their own, until padding
    costs at most 128 coordinates; the smallest block has 64.

    Args:
        bits: bits of each coordinate: 1, 2, 3 or 4, or 0.5, 0.25 or 0.125. Fewer bits: fewer bytes, more noise. 1 bit
            is DRIVE. Words of groups take longer to find.
        block: B, a power of two in [64, 16384]; 32 bits for its scale. Larger: closer to uniform, slower.
        fraction: share of the coordinates that are sent, in (0, 1], rounded up to a multiple of 16, or of the group, in
            each block.
        scaled: true: decode C(x) / (1 + omega), as above.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> EDEN().layout((4096,)).nbytes, EDEN(bits=0.5).layout((4096,)).nbytes
        (520, 264)
        >>> x = torch.sin(torch.arange(4096.0))
        >>> round(float(EDEN().decompress(EDEN().compress(x), x.shape) @ x / (x @ x)), 3)
        1.0

    Source:
        S. Vargaftik, R. Ben Basat, A. Portnoy, G. Mendelson, Y. Ben-Itzhak, M. Mitzenmacher, "EDEN:
        Communication-Efficient and Robust Distributed Mean Estimation for Federated Learning", ICML 2022; of the same
        authors "DRIVE: One-bit Distributed Mean Estimation", NeurIPS 2021. A. W. Nordstrom, J. P. Robinson, "An Optimum
        Nonlinear Code", Information and Control 1967. Two rotations in place of one, and words, are ours.
    """

    bits: float = 1
    block: int = 4096
    fraction: float = 1.0
    scaled: bool = field(default=False, metadata={"later": True})

    name = "eden"
    reference = "S. Vargaftik et al., EDEN, ICML 2022; DRIVE, NeurIPS 2021"
    random = True
    takes_pieces = True

    def __post_init__(self) -> None:
        known = is_int(self.bits, 1, 4) or (isinstance(self.bits, float) and self.bits in _GROUPS)
        require(known, "EDEN.bits", "1, 2, 3 or 4, or 0.5, 0.25 or 0.125", self.bits)
        power = is_int(self.block, 64, 16384) and self.block & (self.block - 1) == 0
        require(power, "EDEN.block", "a power of two in [64, 16384]", self.block)
        require(is_float32(self.fraction) and 0 < self.fraction <= 1, "EDEN.fraction", "in (0, 1]", self.fraction)
        require(isinstance(self.scaled, bool), "EDEN.scaled", "True or False", self.scaled)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return not self.scaled

    @property
    def group(self) -> int:
        """The number of coordinates that share a code, which then is a byte; 1 if each has a code of its own."""
        return _GROUPS.get(self.bits, 1)

    @property
    def sent(self) -> int:
        """The number of coordinates sent of a whole block.

        >>> EDEN(fraction=0.3, block=64).sent
        32
        """
        step = max(STEP, self.group)
        return max(1, math.ceil(round(self.fraction * self.block / step, 6))) * step

    @cached_property
    def _form(self) -> tuple[int, int, int, int]:
        """The arguments of the operations: ``block``, bits of a code, ``sent`` and ``group``."""
        return self.block, int(self.bits) if self.group == 1 else 8, self.sent, self.group

    @property
    def feedback(self) -> Feedback:
        if self.scaled:
            return "required"
        return "optional" if self.contraction else "unsafe"

    @property
    def fine(self) -> bool:
        return self.bits >= 2 and self.sent == self.block and not self.scaled

    @property
    def spreads(self) -> bool:
        return self.bits < 4 or self.sent < self.block

    @property
    def bounded(self) -> str:
        return repr(replace(self, scaled=True))

    @property
    def contraction(self) -> bool:
        return self.scaled or self._variance(SMALLEST, self.sent / self.block) < 1

    def delta(self, n: int) -> float:
        return self.shrink(n) if self.scaled else max(0.0, 1.0 - self._noise(n))

    def omega(self, n: int) -> float:
        return math.inf if self.scaled else self._noise(n)

    def shrink(self, n: int) -> float:
        """The factor that shrinks the decoded values of ``n`` elements."""
        return 1 / (1 + self._noise(n)) if self.scaled else 1.0

    @property
    def for_mean(self) -> EDEN:
        """Half a bit, where this one takes fewer: of 7.2 times the mean's squared norm at an eighth of a bit 1.35 are
        left.

        >>> EDEN(bits=0.125).for_mean.bits, EDEN(bits=2).for_mean.bits
        (0.5, 2)
        """
        coarse = not self.scaled and self.omega(self.block) > capabilities.omega(EDEN(0.5, self.block), self.block)
        return EDEN(0.5, self.block) if coarse else self

    def _noise(self, n: int) -> float:
        """The variance factor ``omega`` before shrinking."""
        sizes = {part.size for part in parts(n, self.block, self.block)} or {SMALLEST}
        return max(self._variance(size, kept(size, self.block, self.sent, self.group) / size) for size in sizes)

    def _variance(self, size: int, share: float) -> float:
        """The variance of a block of ``size`` coordinates of which a fraction is sent."""
        return (1 + 4 / size) / (share * (1 - LEFT[self.bits])) - 1

    @property
    def alignment(self) -> int:
        return self.block

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        return Layout(
            (
                Field("seed", torch.int32, min(n, 1)),
                Field("scales", torch.float32, blocks_of(n, self.block)),
                Field("codes", torch.uint8, code_bytes(n, *self._form)),
            )
        )

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        seed, scales, codes = payload
        if x.numel():
            philox(seed, key.stream(), key.step)
            ops.eden_encode(x.view(-1), seed, scales, codes, *self._form)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        seeds, scales, codes = payloads
        if out.numel():
            block, bits, sent, group = self._form
            shrunk = _factor(self, scale, out.numel())
            ops.eden_add_decoded(seeds, scales, codes, out.view(-1), block, bits, sent, shrunk, group)


@lru_cache(1024)
def _factor(code: EDEN, scale: float, n: int | Each) -> float:
    """The factor of what is decoded of ``n`` elements, or of each piece; one object for equal arguments."""
    if isinstance(n, Each):
        return cast(float, Each(scale * code.shrink(each) for each in n))
    return scale * code.shrink(n)
