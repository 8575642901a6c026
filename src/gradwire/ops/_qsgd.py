"""QSGD by blocks: the norm of each block, the random rounding to its levels, and their packed codes.

With s levels above zero and N the norm of a block: q = sign(x) * min(floor(|x| * (s / N) + r), s), and x is decoded
as q * (N / s). r is uniform in (0, 1), so q * (N / s) is x on average. A norm below ``TINY`` counts as zero, since
s / N must not overflow; one that is not finite makes the whole block decode to NaN.

On the grid "powers" level t is 2**(t - s) of the norm instead of t / s, and the random choice is between the two powers
beside |x|, or between the smallest of them and zero.
"""

import math

import torch
from torch import Tensor

from gradwire.errors import is_int, require
from gradwire.ops._checks import check_vector
from gradwire.ops._moments import lane_sums
from gradwire.ops._philox import philox_words
from gradwire.ops._units import exponent_of, power_of_two

__all__ = [
    "TINY",
    "check_codes",
    "check_levels",
    "check_parameters",
    "check_whole",
    "levels",
    "norms_of",
    "pack_levels",
    "quantise",
    "spread",
    "steps_of",
    "top_of",
    "uniform",
    "unpack_levels",
    "values_of",
    "whole",
]

TINY = 2.0**-120
_LEAST_SQUARES = 2.0**-100
"""A smaller sum of squares may lack some that float32 could not hold."""

_LANES = 16


def levels(bits: int) -> int:
    """How many levels there are above zero."""
    return (1 << bits - 1) - 1


def top_of(bits: int, given: int) -> int:
    """The highest level: all that the bits allow where none is given."""
    return given or levels(bits)


def check_levels(op: str, bits: int, given: int, grid: str) -> None:
    require(is_int(given, 0, levels(bits)), f"{op}.levels", f"an integer from 0 to {levels(bits)}", given)
    require(grid in ("uniform", "powers"), f"{op}.grid", "'uniform' or 'powers'", grid)


def check_parameters(op: str, bits: int, block: int, norm: str = "linf", most: int = 65536) -> None:
    require(is_int(bits, 2, 8), f"{op}.bits", "an integer from 2 to 8", bits)
    multiple = is_int(block, _LANES, most) and block % _LANES == 0
    require(multiple, f"{op}.block", f"a multiple of 16 from 16 to {most}", block)
    require(norm in ("linf", "l2"), f"{op}.norm", "'linf' or 'l2'", norm)


def check_codes(op: str, x: Tensor, norms: Tensor, codes: Tensor, bits: int, block: int) -> None:
    n = x.numel()
    check_vector(f"{op}.norms", norms, torch.float32, x, -(-n // block))
    check_vector(f"{op}.codes", codes, torch.uint8, x, -(-n * bits // 8))


def whole(n: int) -> int:
    """The block that holds ``n`` elements."""
    return max(_LANES, -(-n // _LANES) * _LANES)


def check_whole(op: str, x: Tensor, norm: Tensor, codes: Tensor, bits: int, given: int) -> None:
    check_parameters(op, bits, _LANES)
    require(is_int(given, 1, levels(bits)), f"{op}.levels", f"an integer from 1 to {levels(bits)}", given)
    check_vector(f"{op}.norm", norm, torch.float32, x, 1)
    check_vector(f"{op}.codes", codes, torch.uint8, x, -(-x.numel() * bits // 8))


def norms_of(x: Tensor, block: int, norm: str) -> Tensor:
    """The stored norm of each block."""
    blocks = _blocks(x, block)
    norms = _largest(blocks) if norm == "linf" else _length(blocks)
    return norms.masked_fill_(norms < TINY, 0.0)


def steps_of(norms: Tensor, top: int, grid: str = "uniform") -> Tensor:
    """What the values of the levels are multiples of in each block."""
    return norms.div(torch.full_like(norms, top)) if grid == "uniform" else norms.clone()


def values_of(q: Tensor, top: int, grid: str = "uniform") -> Tensor:
    """What a level stands for, in units of ``steps_of``, as float32."""
    if grid == "uniform":
        return q.float()
    magnitude = q.to(torch.int32).abs()
    value = (magnitude + (127 - top) << 23).view(torch.float32).masked_fill_(magnitude == 0, 0.0)
    return torch.where(q < 0, -value, value)


def quantise(x: Tensor, norms: Tensor, top: int, block: int, key: int, step: int, grid: str = "uniform") -> Tensor:
    """The level of every element, int8."""
    usable = norms.isfinite() & (norms > 0)
    inverse = torch.full_like(norms, top if grid == "uniform" else 1).div_(norms.masked_fill(~usable, math.inf))
    scaled = (_blocks(x.abs(), block) * inverse.unsqueeze(1)).view(-1)[: x.numel()]
    shifts = uniform(x.numel(), key, step, x.device)
    level = scaled.add_(shifts).floor_() if grid == "uniform" else _power(scaled, shifts, top)
    level = level.clamp_(max=top).masked_fill_(~spread(usable, x.numel(), block), 0.0).to(torch.int8)
    return torch.where(x < 0, -level, level)


def _power(share: Tensor, shifts: Tensor, top: int) -> Tensor:
    """The level of a share of the norm, rounded at random between its neighbours."""
    scaled = share * 2.0 ** (top - 1)
    word = scaled.view(torch.int32)
    large = word >= 0x3F800000
    fraction = torch.where(large, (word & 0x7FFFFF | 0x3F800000).view(torch.float32) - 1.0, scaled)
    below = torch.where(large, (word >> 23) - 126, 0)
    return below + (fraction + shifts >= 1.0)


def pack_levels(q: Tensor, bits: int, codes: Tensor) -> None:
    """Write levels in two's complement, element i in the bits i * bits .. of the stream, lowest bit first."""
    padded = torch.nn.functional.pad(q, (0, -q.numel() % 8)).view(-1, 8).to(torch.int64) & (2**bits - 1)
    words = (padded << _multiples(8, bits, q.device)).sum(dim=1, keepdim=True)
    codes.copy_((words >> _multiples(bits, 8, q.device) & 0xFF).view(-1)[: codes.numel()])


def unpack_levels(codes: Tensor, bits: int, n: int) -> Tensor:
    """The first ``n`` levels, as float32."""
    padded = torch.nn.functional.pad(codes, (0, -codes.numel() % bits)).view(-1, bits).to(torch.int64)
    words = (padded << _multiples(bits, 8, codes.device)).sum(dim=1, keepdim=True)
    raw = words >> _multiples(8, bits, codes.device) & (2**bits - 1)
    sign = 1 << bits - 1
    level: Tensor = raw.bitwise_xor(sign).sub(sign).view(-1)[:n].float()
    return level


def spread(values: Tensor, n: int, block: int) -> Tensor:
    """For each of ``n`` elements the value of its block."""
    return values.repeat_interleave(block, output_size=values.numel() * block)[:n]


def _blocks(x: Tensor, block: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, -x.numel() % block)).view(-1, block)


def _largest(blocks: Tensor) -> Tensor:
    magnitudes = blocks.view(torch.int32) & 0x7FFFFFFF
    return magnitudes.amax(dim=1).view(torch.float32)


def _length(blocks: Tensor) -> Tensor:
    """The root of the sum of squares; where these vanish or overflow, in units near the largest element."""
    squares = _squares(blocks)
    plain = (squares >= _LEAST_SQUARES) & (squares < math.inf)
    exponents = exponent_of(_largest(blocks))
    scaled = _root(_squares(blocks * power_of_two(-exponents).unsqueeze(1))) * power_of_two(exponents)
    length = torch.where(plain, _root(squares), scaled)
    return length.masked_fill_(length.isnan(), math.nan)


def _squares(blocks: Tensor) -> Tensor:
    """The sum of squares of each row, added in the same order everywhere."""
    return lane_sums(blocks * blocks)


def _root(x: Tensor) -> Tensor:
    # torch's root of a float32 may be one bit off; through float64 it is the nearest.
    return x.double().sqrt_().float()


def uniform(n: int, key: int, step: int, device: torch.device) -> Tensor:
    """16 bits of Philox for each element, as the middles of 2**16 parts of (0, 1)."""
    words = philox_words(0, -(-n // 8), key, step, device)
    halves = torch.stack((words & 0xFFFF, words >> 16), dim=2).view(-1)[:n]
    return (halves.float() + 0.5) * 2.0**-16


def _multiples(count: int, of: int, device: torch.device) -> Tensor:
    return torch.arange(0, count * of, of, device=device)
