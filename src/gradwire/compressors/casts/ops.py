"""Operations on elements that are rounded each by itself: casts, and codes of 8 bits with a scale.

Eight bits an element: blocks that share a scale, and four codebooks of 256 values for what is inside. With N the
largest magnitude of a block and F the largest value of the codebook: y = x * (1 / N), the code is that of the value
nearest to F * y, and it is decoded as value * (N / F). N below 2**-120 counts as zero, since 1 / N must not overflow;
one that is not finite makes the whole block decode to NaN.

    linear     F = 127     the integers, two's complement
    dynamic    F = 1       seven decades of 1, 2, 4, ... 64 equal steps each, sorted: code 127 is 0, code 255 is 1
    e4m3       F = 448     OCP 8-bit floats, 3 bits of fraction
    e5m2       F = 57344   OCP 8-bit floats, 2 bits of fraction
"""

import functools
from typing import Annotated

import torch
from torch import Tensor

from gradwire._once import once
from gradwire.kernels.arguments import Flat, Floats, Names, Rows, Status, Where, Written
from gradwire.kernels.base import declared
from gradwire.kernels.feedback import compensate
from gradwire.kernels.float32 import float32
from gradwire.kernels.levels import norms_of, spread

__all__ = [
    "KINDS",
    "cast_add_decoded",
    "cast_encode",
    "cast_encode_feedback",
    "codebook",
    "eightbit_add_decoded",
    "eightbit_encode",
    "eightbit_encode_feedback",
    "scale_count",
]

CASTS = (torch.float16, torch.bfloat16, torch.float32)
"""Types to which a float32 may be cast."""

Cast = Annotated[Tensor, Flat(CASTS, "n", written=True)]


@declared(merges=True)
def cast_encode(x: Floats, out: Cast, scale: float) -> None:
    """Round to the format of ``out``, to nearest, ties to even: out = RNE(x * scale).

    Args:
        x: float32, n elements.
        out: float16, bfloat16 or float32, n elements. float16 overflows to infinity from 65520 on.
        scale: factor before rounding, rounded to float32 itself; 1 is exact.

    >>> out = torch.empty(2, dtype=torch.bfloat16)
    >>> cast_encode(torch.tensor([1.0, 3.0]), out, 0.5)
    >>> out
    tensor([0.5000, 1.5000], dtype=torch.bfloat16)
    """
    out.copy_(x * float32(scale))


@declared(merges=True)
def cast_encode_feedback(grad: Written, residual: Written, out: Cast, status: Status = None) -> None:
    """Round x = residual + grad to the format of ``out``, to nearest, ties to even, and keep the rest: residual = x -
    out.

    Args:
        grad: float32, n elements. Without ``status`` it is not changed; with it, it receives the old residual.
        residual: float32, n elements.
        out: float16, bfloat16 or float32, n elements.
        status: int32 of one element, or None. Its bit 0 is set where an element of x or of its code is not finite;
            nothing clears it here.

    >>> grad, residual = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.001953125])
    >>> out = torch.empty(2, dtype=torch.bfloat16)
    >>> cast_encode_feedback(grad, residual, out)
    >>> out.tolist(), residual.tolist()
    ([1.0, 3.0], [0.0, 0.001953125])
    """
    x = residual + grad
    out.copy_(x)
    if status is not None:
        grad.copy_(residual)
    torch.sub(x, out.float(), out=residual)
    if status is not None:
        status |= ~torch.isfinite(residual).all()


@declared(merges=True)
def cast_add_decoded(
    payloads: Annotated[Tensor, Rows(CASTS, "n")], out: Written, scale: float, fresh: bool = False
) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + scale * payloads[w], for every w.

    Args:
        payloads: float16, bfloat16 or float32, (W, n), rows contiguous.
        out: float32, n elements.
        scale: factor of every payload, rounded to float32; 1 / W for the mean.
        fresh: true: ``out`` counts as 0, whatever it holds, and is not read.

    >>> out = torch.zeros(2)
    >>> cast_add_decoded(torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float16), out, 0.5)
    >>> out
    tensor([2., 3.])
    """
    factor = float32(scale)
    if fresh:
        out.zero_()
    for payload in payloads:
        out += payload.float() * factor


LARGEST = {"linear": 127.0, "dynamic": 1.0, "e4m3": 448.0, "e5m2": 57344.0}
KINDS = tuple(LARGEST)
ZERO = {"linear": 0, "dynamic": 127, "e4m3": 0, "e5m2": 0}
_FRACTION = {"e4m3": 3, "e5m2": 2}
_BIAS = {"e4m3": 7, "e5m2": 15}
_DECADES = 7

Kind = Annotated[str, Names(KINDS)]
Block = Annotated[
    int,
    Where("0 <= block <= 65536 and block % 16 == 0", "a multiple of 16 from 16 to 65536, or 0 for the whole tensor"),
]
Scales = Annotated[Tensor, Flat(torch.float32, "scale_count(n, block)", written=True)]
Codes = Annotated[Tensor, Flat(torch.uint8, "n", written=True)]


def scale_count(n: int, block: int) -> int:
    """The number of scales of ``n`` elements."""
    return -(-n // block) if block else min(n, 1)


@once
def codebook(kind: str, device: torch.device) -> Tensor:
    """The 256 values; "dynamic" adds 7 borders below the decades, the border below 1, and 7 slopes."""
    if kind == "linear":
        values = torch.arange(256, dtype=torch.uint8, device="cpu").view(torch.int8).float()
    elif kind == "dynamic":
        values = torch.cat([_dynamic_values(), _dynamic_ladder()])
    else:
        values = _float8_values(kind)
    return values.to(device)


def _write_codes(x: Tensor, scales: Tensor, codes: Tensor, kind: str, block: int) -> None:
    """Write scales and codes."""
    n, size = x.numel(), block or max(x.numel(), 1)
    scales.copy_(norms_of(x, size, "linf"))
    usable = scales.isfinite() & (scales > 0)
    inverse = torch.ones_like(scales).div_(scales.masked_fill(~usable, 1.0))
    y = x * spread(inverse, n, size)
    nearest = {"linear": _linear, "dynamic": _dynamic}.get(kind, functools.partial(_float8, kind=kind))
    codes.copy_(nearest(y).masked_fill(~spread(usable, n, size), ZERO[kind]).to(torch.uint8))


def _dequantise(scales: Tensor, codes: Tensor, kind: str, block: int, scale: float) -> Tensor:
    """Decode the elements and multiply them by ``scale``, a float32."""
    n = codes.numel()
    steps = scales.div(torch.full_like(scales, LARGEST[kind])) * scale
    return spread(steps, n, block or max(n, 1)) * codebook(kind, codes.device)[codes.long()]


def _linear(y: Tensor) -> Tensor:
    return (y * LARGEST["linear"]).round().to(torch.int32) & 0xFF


def _dynamic(y: Tensor) -> Tensor:
    """The nearest code of the dynamic map; it is a floor, because in decade d the codes 2**d to 2**(d + 1) - 1 have
    equal steps.
    """
    ladder = codebook("dynamic", y.device)[256:]
    magnitude = y.abs()
    decade = sum((magnitude >= ladder[d]).to(torch.int64) for d in range(1, _DECADES))
    first = torch.exp2(torch.arange(_DECADES, device=y.device).float())[decade]
    place = (magnitude * ladder[8:][decade] + first * _AHEAD).floor()
    place = torch.minimum(place, first + first - 1.0) * (magnitude >= ladder[0])
    place = torch.where(y >= ladder[7], 128.0, place).to(torch.int32)
    return 127 + torch.where(y < 0, -place, place)


def _float8(y: Tensor, kind: str) -> Tensor:
    """Round to nearest even by the bits, because casts to float8 differ at the largest value and beyond."""
    scaled = y * LARGEST[kind]
    bits, magnitude = scaled.view(torch.int32), scaled.abs()
    shift = 23 - _FRACTION[kind]
    word = magnitude.view(torch.int32)
    normal = (word + (1 << shift - 1) - 1 + (word >> shift & 1) >> shift) - (127 - _BIAS[kind] << _FRACTION[kind])
    # One unit of a float32 near ``unit`` is the smallest float8.
    unit = torch.full((), 2.0 ** (24 - _BIAS[kind] - _FRACTION[kind]), dtype=torch.float32, device=y.device)
    subnormal = (magnitude + unit).view(torch.int32) - unit.view(torch.int32)
    code = torch.where(magnitude < 2.0 ** (1 - _BIAS[kind]), subnormal, normal)
    return code | bits >> 24 & 0x80


def _dynamic_values() -> Tensor:
    """The signed dynamic map of bitsandbytes: the middles of equal parts of [0.1, 1] in each decade, 0, and 1."""
    rising = torch.cat([_middles(1 << d) * 10.0 ** (d - _DECADES + 1) for d in range(_DECADES)])
    return torch.cat([-rising.flip(0), rising.new_zeros(1), rising, rising.new_ones(1)])


def _middles(parts: int) -> Tensor:
    # torch.linspace with its multiply-add in one rounding, which not every machine has: in float64, rounded once.
    low, high = torch.tensor([0.1, 1.0], dtype=torch.float32, device="cpu")
    step, i = ((high - low) / parts).double(), torch.arange(parts + 1, device="cpu").double()
    below = low.double() + step * i
    above = high.double() - step * (parts - i)
    borders = torch.where(i < (parts + 1) // 2, below, above).float()
    return (borders[:-1] + borders[1:]) / 2.0


def _dynamic_ladder() -> Tensor:
    """Borders at which the nearest code passes from one decade to the next, and the number of codes a unit of y in each
    decade.
    """
    values = _dynamic_values()[127:]
    first = [1 << d for d in range(_DECADES + 1)]
    borders = torch.stack([(values[i - 1] + values[i]) / 2.0 for i in first])
    slopes = borders.new_tensor([10.0 ** (_DECADES - 1 - d) * 2**d / 0.9 for d in range(_DECADES)])
    return torch.cat([borders, slopes])


_AHEAD = float(torch.tensor(8 / 9, dtype=torch.float32, device="cpu"))
"""The lowest code of a decade is 2**d, and a y of 0 lies 2**d / 9 codes below it."""


def _float8_values(kind: str) -> Tensor:
    """The values of the bytes by the formats' definition: exponents of all ones are special, in e4m3 only 7f and ff."""
    byte, fraction = torch.arange(256, device="cpu"), _FRACTION[kind]
    exponent, mantissa = (byte & 0x7F) >> fraction, (byte & (1 << fraction) - 1).float()
    lead = (exponent > 0).float() + mantissa * 2.0**-fraction
    magnitude = lead * torch.exp2(exponent.clamp(min=1).float() - _BIAS[kind])
    if kind == "e4m3":
        magnitude.masked_fill_(byte & 0x7F == 0x7F, torch.nan)
    else:
        magnitude.masked_fill_(byte & 0x7F == 0x7C, torch.inf)
        magnitude.masked_fill_(byte & 0x7F > 0x7C, torch.nan)
    return torch.where(byte < 128, magnitude, -magnitude)


@declared(tables=("codebook(kind, x.device)",), merges=True)
def eightbit_encode(x: Floats, scales: Scales, codes: Codes, kind: Kind, block: Block) -> None:
    """Send for each element the nearest of 256 values that span its block.

        code = nearest value to F * x * (1 / N),    decoded = value * (N / F)

    N is the largest magnitude of the block and F the codebook's largest value; ties go to the even integer or float,
    and in "dynamic" away from zero. A block whose N is below 2**-120 becomes zeros; one that holds an infinity or a NaN
    decodes to NaN.

    Args:
        x: float32, n elements; not changed.
        scales: float32, N of each block: ceil(n / block), or one for a block of 0.
        codes: uint8, n.
        kind: "linear", the integers from -127 to 127; "dynamic", bitsandbytes' map of seven decades; "e4m3" or "e5m2",
            floats of 8 bits. Linear errs least where a block's elements are of one magnitude, the others where they
            span several.
        block: elements that share a scale, a multiple of 16 from 16 to 65536; 0: all of them.

    >>> scales, codes = torch.empty(1), torch.empty(3, dtype=torch.uint8)
    >>> eightbit_encode(torch.tensor([2.0, -1.0, 0.0]), scales, codes, "e4m3", block=16)
    >>> scales.item(), bytes(codes.tolist()).hex()
    (2.0, '7ef600')

    Source: T. Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016; P. Micikevicius et al.,
    "FP8 Formats for Deep Learning", 2022.
    """
    _write_codes(x, scales, codes, kind, block)


@declared(tables=("codebook(kind, grad.device)",), merges=True)
def eightbit_encode_feedback(
    grad: Written, residual: Written, scales: Scales, codes: Codes, kind: Kind, block: Block, status: Status = None
) -> None:
    """Encode x = residual + grad as ``eightbit_encode`` does, and keep what the codes do not represent.

        residual = x - value * (N / F)

    Args:
        grad: float32, n elements. Without ``status`` it is not changed; with it, it receives the old residual.
        residual: float32, n elements.
        scales: float32, ceil(n / block), or one for a block of 0.
        codes: uint8, n.
        kind: "linear", "dynamic", "e4m3" or "e5m2".
        block: a multiple of 16 from 16 to 65536, or 0.
        status: int32 of one element, or None. Its bit 0 is set when an element of x is not finite; nothing clears it
            here.

    >>> grad, residual = torch.tensor([2.0, -1.0, 0.0]), torch.tensor([0.0, 0.01, 0.0])
    >>> scales, codes = torch.empty(1), torch.empty(3, dtype=torch.uint8)
    >>> eightbit_encode_feedback(grad, residual, scales, codes, "e4m3", block=16)
    >>> bytes(codes.tolist()).hex(), [round(x, 4) for x in residual.tolist()]
    ('7ef600', [0.0, 0.01, 0.0])

    Source: as ``eightbit_encode``.
    """
    x = compensate(grad, residual, status)
    _write_codes(x, scales, codes, kind, block)
    torch.add(x, _dequantise(scales, codes, kind, block, -1.0), out=residual)


@declared(tables=("codebook(kind, out.device)",), merges=True)
def eightbit_add_decoded(
    scales: Annotated[Tensor, Rows(torch.float32, "scale_count(n, block)")],
    codes: Annotated[Tensor, Rows(torch.uint8, "n")],
    out: Written,
    kind: Kind,
    block: Block,
    scale: float,
    fresh: bool = False,
) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (scale * (N / F)) * value.

    Args:
        scales: float32, (W, ceil(n / block)) with contiguous rows, or (W, 1) for a block of 0: N of each block.
        codes: uint8, (W, n) with contiguous rows. Any bytes are safe.
        out: float32, n elements.
        kind: "linear", "dynamic", "e4m3" or "e5m2", as encoded.
        block: a multiple of 16 from 16 to 65536, or 0, as encoded.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.
        fresh: true: ``out`` counts as 0, whatever it holds, and is not read.

    >>> out, codes = torch.zeros(3), torch.tensor([[0x7E, 0xF6, 0x00]], dtype=torch.uint8)
    >>> eightbit_add_decoded(torch.tensor([[2.0]]), codes, out, "e4m3", 16, 0.5)
    >>> out.tolist()
    [1.0, -0.5, 0.0]

    Source: as ``eightbit_encode``.
    """
    if fresh:
        out.zero_()
    for row_scales, row_codes in zip(scales, codes, strict=True):
        out += _dequantise(row_scales, row_codes, kind, block, float32(scale))
