"""Floats of four bits without a mantissa: the nearest power of two of what is largest in a block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors.decoders import FreshDecoder
from gradwire.compressors.levels import ops
from gradwire.errors import is_int, require
from gradwire.kernels.levels import TINY, pack_levels
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["E3M0"]

_TOP = 7
"""The largest exponent: 0 is the value 0, t the power 2^(t - 7)."""

_SLICE = 2**13
"""Elements that are rounded at a time, so that nothing of the size of a gradient is allocated."""


@dataclass(frozen=True)
class E3M0(FreshDecoder):
    """Round each element to the nearest of 0 and 2^-6, ..., 1/2, 1 times the largest magnitude N of its block.

    |C(x) - x| <= |x| / 3 where |x| >= 3/4 2^-6 N, and |C(x) - x| <= 2^-7 N below, where C(x) = 0 from 2^-7 N on. Over a
    block of at most 2,049 elements |C(x) - x|^2 <= |x|^2 / 9, and delta = 8 / 9.

    It is meant for the changes that ``DiLoCo`` exchanges fragment by fragment: a sign and an exponent of three bits for
    each element, which receivers add up in float32. A code is one of ``nuqsgd`` with 4 bits, which rounds at random;
    this has about half its error, and the same bits in each run.

    Args:
        block: elements that share N, a multiple of 16 in [16, 65536]; each costs 32 bits. None: all of a tensor.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = E3M0()
        >>> code.layout((1024,)).nbytes
        528
        >>> code.decompress(code.compress(torch.tensor([8.0, -2.9, 3.1, 0.1, 0.05])), (5,)).tolist()
        [8.0, -2.0, 4.0, 0.125, 0.0]

    Source:
        A. Douillard et al., "Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch",
        arXiv:2501.18512, 2025.
    """

    block: int | None = 256

    name = "e3m0"
    reference = "A. Douillard et al., Streaming DiLoCo, arXiv:2501.18512, 2025"

    def __post_init__(self) -> None:
        whole = self.block is None or is_int(self.block, 16, 65536, of=16)
        require(whole, "E3M0.block", "a multiple of 16 in [16, 65536] or None", self.block)

    @property
    def fine(self) -> bool:
        return self.block is not None

    def delta(self, n: int) -> float:
        """The worst of a block: all but one element just below what is not 0 any more, or all at half as much again as
        a power.
        """
        small = (self._size(n) - 1) * 4.0**-_TOP
        return 1.0 - max(1 / 9, small / (1 + small))

    @property
    def alignment(self) -> int:
        return self.block or 16

    def _size(self, n: int) -> int:
        """The elements of a block of a tensor of n elements."""
        return max(1, n if self.block is None else min(self.block, n))

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        return Layout((Field("norms", torch.float32, -(-n // self._size(n))), Field("codes", torch.uint8, -(-n // 2))))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        norms, codes = payload
        flat = x.view(-1)
        n, size = flat.numel(), self._size(flat.numel())
        cut = n // size * size
        for some, part in ((flat[:cut], norms[: n // size]), (flat[cut:], norms[n // size :])):
            if part.numel():
                low, high = some.view(part.numel(), -1).aminmax(dim=1)
                largest = torch.maximum(-low, high)
                part.copy_(largest.masked_fill_(largest < TINY, 0.0))
        for start in range(0, n, _SLICE):
            some = flat[start : start + _SLICE]
            places = torch.arange(start, start + some.numel(), device=x.device) // size
            pack_levels(_nearest(some, norms[places]), 4, codes[start // 2 :][: -(-some.numel() // 2)])

    def add_rows(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool) -> None:
        norms, codes = payloads
        block = ops.WHOLE if self.block is None else self.block
        ops.qsgd_add_decoded(norms, codes, out, 4, block, scale, grid="powers", fresh=fresh)


def _nearest(x: Tensor, norms: Tensor) -> Tensor:
    """The exponent of each element with its sign, int32; 0 where the norm is 0 or not finite, whose block decodes to
    zeros or to NaN.
    """
    share = x.abs().div_(norms)
    mantissa, exponent = torch.frexp(share)
    # A mantissa is in [1/2, 1), and 3/4 lies in the middle between two powers.
    level = (exponent + (mantissa >= 0.75).to(torch.int32) + (_TOP - 1)).clamp_(1, _TOP)
    level.masked_fill_(~((share >= 2.0**-_TOP) & norms.isfinite() & (norms > 0)), 0)
    return torch.where(x < 0, -level, level)
