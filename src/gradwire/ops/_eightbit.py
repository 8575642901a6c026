"""Eight bits an element: blocks that share a scale, and four codebooks of 256 values for what is inside.

With N the largest magnitude of a block and F the largest value of the codebook: y = x * (1 / N), the code is that of
the value nearest to F * y, and it is decoded as value * (N / F). N below 2**-120 counts as zero, since 1 / N must not
overflow; one that is not finite makes the whole block decode to NaN.

    linear     F = 127     the integers, two's complement
    dynamic    F = 1       seven decades of 1, 2, 4, ... 64 equal steps each, sorted: code 127 is 0, code 255 is 1
    e4m3       F = 448     OCP 8-bit floats, 3 bits of fraction
    e5m2       F = 57344   OCP 8-bit floats, 2 bits of fraction
"""

import functools

import torch
from torch import Tensor

from gradwire.errors import is_int, require
from gradwire.ops._checks import check_vector
from gradwire.ops._qsgd import norms_of, spread

__all__ = ["KINDS", "LARGEST", "check_codes", "check_parameters", "codebook", "count", "dequantise", "encode", "spread"]

LARGEST = {"linear": 127.0, "dynamic": 1.0, "e4m3": 448.0, "e5m2": 57344.0}
KINDS = tuple(LARGEST)
ZERO = {"linear": 0, "dynamic": 127, "e4m3": 0, "e5m2": 0}
_FRACTION = {"e4m3": 3, "e5m2": 2}
_BIAS = {"e4m3": 7, "e5m2": 15}
_DECADES = 7


def check_parameters(op: str, kind: str, block: int) -> None:
    require(kind in KINDS, f"{op}.kind", f"one of {', '.join(KINDS)}", kind)
    multiple = is_int(block, 0, 65536) and block % 16 == 0
    require(multiple, f"{op}.block", "a multiple of 16 from 16 to 65536, or 0 for the whole tensor", block)


def count(n: int, block: int) -> int:
    """How many scales ``n`` elements have."""
    return -(-n // block) if block else min(n, 1)


def check_codes(op: str, x: Tensor, scales: Tensor, codes: Tensor, block: int) -> None:
    check_vector(f"{op}.scales", scales, torch.float32, x, count(x.numel(), block))
    check_vector(f"{op}.codes", codes, torch.uint8, x, x.numel())


@functools.cache
def codebook(kind: str, device: torch.device) -> Tensor:
    """The 256 values; for "dynamic" then 7 borders below the decades, the border below 1, and 7 slopes."""
    if kind == "linear":
        values = torch.arange(256, dtype=torch.uint8).view(torch.int8).float()
    elif kind == "dynamic":
        values = torch.cat([_dynamic_values(), _dynamic_ladder()])
    else:
        values = _float8_values(kind)
    return values.to(device)


def encode(x: Tensor, scales: Tensor, codes: Tensor, kind: str, block: int) -> None:
    """Write scales and codes."""
    n, size = x.numel(), block or max(x.numel(), 1)
    scales.copy_(norms_of(x, size, "linf"))
    usable = scales.isfinite() & (scales > 0)
    inverse = torch.ones_like(scales).div_(scales.masked_fill(~usable, 1.0))
    y = x * spread(inverse, n, size)
    nearest = {"linear": _linear, "dynamic": _dynamic}.get(kind, functools.partial(_float8, kind=kind))
    codes.copy_(nearest(y).masked_fill(~spread(usable, n, size), ZERO[kind]).to(torch.uint8))


def dequantise(scales: Tensor, codes: Tensor, kind: str, block: int, scale: float) -> Tensor:
    """``scale`` times the decoded elements; ``scale`` is a float32."""
    n = codes.numel()
    steps = scales.div(torch.full_like(scales, LARGEST[kind])) * scale
    return spread(steps, n, block or max(n, 1)) * codebook(kind, codes.device)[codes.long()]


def _linear(y: Tensor) -> Tensor:
    return (y * LARGEST["linear"]).round().to(torch.int32) & 0xFF


def _dynamic(y: Tensor) -> Tensor:
    """In decade d the codes 2**d to 2**(d + 1) - 1 have equal steps, so the nearest one is a floor."""
    ladder = codebook("dynamic", y.device)[256:]
    magnitude = y.abs()
    decade = sum((magnitude >= ladder[d]).to(torch.int64) for d in range(1, _DECADES))
    first = torch.exp2(torch.arange(_DECADES, device=y.device).float())[decade]
    place = (magnitude * ladder[8:][decade] + first * _AHEAD).floor()
    place = torch.minimum(place, first + first - 1.0) * (magnitude >= ladder[0])
    place = torch.where(y >= ladder[7], 128.0, place).to(torch.int32)
    return 127 + torch.where(y < 0, -place, place)


def _float8(y: Tensor, kind: str) -> Tensor:
    """To nearest even, by the bits: casts to float8 differ in what they do at the largest value and beyond."""
    scaled = y * LARGEST[kind]
    bits, magnitude = scaled.view(torch.int32), scaled.abs()
    shift = 23 - _FRACTION[kind]
    word = magnitude.view(torch.int32)
    normal = (word + (1 << shift - 1) - 1 + (word >> shift & 1) >> shift) - (127 - _BIAS[kind] << _FRACTION[kind])
    # One unit of a float32 near ``unit`` is the smallest float8.
    unit = torch.full((), 2.0 ** (24 - _BIAS[kind] - _FRACTION[kind]), device=y.device)
    subnormal = (magnitude + unit).view(torch.int32) - unit.view(torch.int32)
    code = torch.where(magnitude < 2.0 ** (1 - _BIAS[kind]), subnormal, normal)
    return code | bits >> 24 & 0x80


def _dynamic_values() -> Tensor:
    """The signed dynamic map of bitsandbytes: the middles of equal parts of [0.1, 1] in each decade, 0, and 1."""
    rising = torch.cat([_middles(1 << d) * 10.0 ** (d - _DECADES + 1) for d in range(_DECADES)])
    return torch.cat([-rising.flip(0), torch.zeros(1), rising, torch.ones(1)])


def _middles(parts: int) -> Tensor:
    # torch.linspace with its multiply-add in one rounding, which not every machine has: in float64, rounded once.
    low, high = torch.tensor([0.1, 1.0])
    step, i = ((high - low) / parts).double(), torch.arange(parts + 1).double()
    below = low.double() + step * i
    above = high.double() - step * (parts - i)
    borders = torch.where(i < (parts + 1) // 2, below, above).float()
    return (borders[:-1] + borders[1:]) / 2.0


def _dynamic_ladder() -> Tensor:
    """Where the nearest code passes from one decade to the next, and how many codes a decade has per unit of y."""
    values = _dynamic_values()[127:]
    first = [1 << d for d in range(_DECADES + 1)]
    borders = torch.stack([(values[i - 1] + values[i]) / 2.0 for i in first])
    slopes = torch.tensor([10.0 ** (_DECADES - 1 - d) * 2**d / 0.9 for d in range(_DECADES)])
    return torch.cat([borders, slopes])


_AHEAD = float(torch.tensor(8 / 9))
"""The lowest code of a decade is 2**d, and a y of 0 lies 2**d / 9 codes below it."""


def _float8_values(kind: str) -> Tensor:
    """The values of the bytes, from the formats' definition: exponents all ones are special, in e4m3 only 7f and ff."""
    byte, fraction = torch.arange(256), _FRACTION[kind]
    exponent, mantissa = (byte & 0x7F) >> fraction, (byte & (1 << fraction) - 1).float()
    lead = (exponent > 0).float() + mantissa * 2.0**-fraction
    magnitude = lead * torch.exp2(exponent.clamp(min=1).float() - _BIAS[kind])
    if kind == "e4m3":
        magnitude.masked_fill_(byte & 0x7F == 0x7F, torch.nan)
    else:
        magnitude.masked_fill_(byte & 0x7F == 0x7C, torch.inf)
        magnitude.masked_fill_(byte & 0x7F > 0x7C, torch.nan)
    return torch.where(byte < 128, magnitude, -magnitude)
