"""Parts of random rounding to levels that other operations use: norms of blocks, packed codes, and uniform numbers."""

import math

import torch
from torch import Tensor

from gradwire.kernels.bits import pack, unpack
from gradwire.kernels.philox4x32 import philox_words
from gradwire.kernels.sums import lane_sums
from gradwire.kernels.units import exponent_of, power_of_two

__all__ = ["TINY", "in_blocks", "norms_of", "pack_levels", "spread", "uniform", "unpack_levels"]

TINY = 2.0**-120
"""A smaller norm counts as zero, since what it divides must not overflow."""

_LEAST_SQUARES = 2.0**-100
"""A smaller sum of squares may lack some that float32 could not hold."""


def norms_of(x: Tensor, block: int, norm: str) -> Tensor:
    """Compute the stored norm of each block."""
    blocks = in_blocks(x, block)
    norms = _largest(blocks) if norm == "linf" else _length(blocks)
    return norms.masked_fill_(norms < TINY, 0.0)


def pack_levels(q: Tensor, bits: int, codes: Tensor) -> None:
    """Write levels in two's complement, element i in the bits i * bits .. of the stream, lowest bit first."""
    codes.copy_(pack(q, bits)[: codes.numel()])


def unpack_levels(codes: Tensor, bits: int, n: int) -> Tensor:
    """Unpack the first ``n`` levels, as float32."""
    sign = 1 << bits - 1
    level: Tensor = unpack(codes, bits, n).to(torch.int16).bitwise_xor_(sign).sub_(sign).float()
    return level


def spread(values: Tensor, n: int, block: int) -> Tensor:
    """Repeat the value of each block for its elements, ``n`` in all."""
    return values.repeat_interleave(block, output_size=values.numel() * block)[:n]


def in_blocks(x: Tensor, block: int) -> Tensor:
    """View a flat tensor as rows of a block each, the last filled up with zeros."""
    return torch.nn.functional.pad(x, (0, -x.numel() % block)).view(-1, block)


def _largest(blocks: Tensor) -> Tensor:
    magnitudes = blocks.view(torch.int32) & 0x7FFFFFFF
    return magnitudes.amax(dim=1).view(torch.float32)


def _length(blocks: Tensor) -> Tensor:
    """Compute the root of the sum of squares; if these vanish or overflow, in units near the largest element."""
    squares = _squares(blocks)
    plain = (squares >= _LEAST_SQUARES) & (squares < math.inf)
    exponents = exponent_of(_largest(blocks))
    scaled = _root(_squares(blocks * power_of_two(-exponents).unsqueeze(1))) * power_of_two(exponents)
    length = torch.where(plain, _root(squares), scaled)
    return length.masked_fill_(length.isnan(), math.nan)


def _squares(blocks: Tensor) -> Tensor:
    """Compute the sum of squares of each row, added in the same order everywhere."""
    return lane_sums(blocks * blocks)


def _root(x: Tensor) -> Tensor:
    # torch's root of a float32 may be one bit off; through float64 it is the nearest.
    return x.double().sqrt_().float()


def uniform(n: int, key: int, step: int, device: torch.device) -> Tensor:
    """Make uniform numbers from 16 bits of Philox for each element, as the middles of 2**16 parts of (0, 1)."""
    words = philox_words(0, -(-n // 8), key, step, device)
    halves = torch.stack((words & 0xFFFF, words >> 16), dim=2).view(-1)[:n]
    return (halves.float() + 0.5) * 2.0**-16
