"""Operations on levels: random rounding to those of a block's norm or of one norm for all, and to powers of two.

Levels: with s of them above zero and N the norm of a block, q = sign(x) * min(floor(|x| * (s / N) + r), s), and x is
decoded as q * (N / s). r is uniform in (0, 1), so q * (N / s) is x on average. A norm below 2**-120 counts as zero,
since s / N must not overflow; one that is not finite makes the whole block decode to NaN. On the grid "powers" level t
is 2**(t - s) of the norm instead of t / s, and the random choice is between the two powers beside |x|, or between the
smallest of them and zero.

Natural compression: an element is rounded to a power of two by its bits: the biased exponent of |x| after a random
23-bit number, or half of 2**23, was added to the bits of |x| carries exactly where it should. A byte holds it in a
window of exponents, which starts above the biased exponent ``base`` = max(E - 126, 0), with E that of the block's
largest element, so that even rounded up it is inside:

    code = sign << 7 | m,    m = max(exponent - base, 0),    decoded = sign 2**(base + m - 127), 0 for m = 0

What is 2**126 times smaller than the largest of its block becomes 0. Exponents end at 254, 2**127. A block that holds
an infinity or a NaN has base 255 and decodes to NaN.

Nearest levels of 4 bits, s = 7: q = round(x * (7 / N)), decoded as those above. The errors that are compensated are
codes of 8 bits, in the form of ``gradwire.kernels.stored``.

Moments, from which the norm of a whole tensor is made: one row for each segment of ``SEGMENT`` elements: the largest
magnitude, the origin, the sum of the distances d from it, the sum of d * d; float32, added up in the order in which the
lanes of a kernel do it. Distances from an element of the segment itself keep the variance exact where the spread is far
below the mean: of a constant it is exactly zero. Both sums are of d / 2^e: e is 0 while the largest magnitude lies
between 2^-40 and 2^41, else its own exponent, so that squares neither vanish nor overflow.
"""

import math
from typing import Annotated

import torch
from torch import Tensor

from gradwire.kernels.arguments import Flat, Floats, Names, Rows, Status, Where, Written
from gradwire.kernels.base import declared
from gradwire.kernels.feedback import compensate
from gradwire.kernels.float32 import float32
from gradwire.kernels.levels import TINY, norms_of, pack_levels, spread, uniform, unpack_levels
from gradwire.kernels.philox4x32 import philox_words
from gradwire.kernels.stored import read, row_bytes, write
from gradwire.kernels.sums import lane_sums, sum_of_sums
from gradwire.kernels.units import exponent_of, power_of_two

__all__ = [
    "LARGEST_BLOCK",
    "SEGMENT",
    "WHOLE",
    "loco_encode",
    "loco_encode_averaged",
    "moments",
    "moments_feedback",
    "moments_norm",
    "natural_add_decoded",
    "natural_encode",
    "natural_encode_feedback",
    "qsgd_add_decoded",
    "qsgd_encode",
    "qsgd_encode_feedback",
    "round_encode",
    "round_keep",
    "top_of",
]

Bits = Annotated[int, Where("2 <= bits <= 8", "an integer from 2 to 8")]
Block = Annotated[int, Where("16 <= block <= 65536 and block % 16 == 0", "a multiple of 16 from 16 to 65536")]
LARGEST_BLOCK = 65536
"""The largest block that an encoder measures."""

WHOLE = 2**48
"""A block that no tensor fills: one norm for all of it."""

LongBlock = Annotated[int, Where("16 <= block <= 2**48 and block % 16 == 0", "a multiple of 16 from 16 to {2**48}")]
"""A decoder does not keep a block in its cache, so the norm may be that of a whole tensor."""

Levels = Annotated[int, Where("0 <= levels < 2 ** (bits - 1)", "an integer from 0 to {2 ** (bits - 1) - 1}")]
GivenLevels = Annotated[int, Where("1 <= levels < 2 ** (bits - 1)", "an integer from 1 to {2 ** (bits - 1) - 1}")]
NormName = Annotated[str, Names(("linf", "l2"))]
GridName = Annotated[str, Names(("uniform", "powers"))]
Norm = Annotated[Tensor, Flat(torch.float32, "1")]
Norms = Annotated[Tensor, Flat(torch.float32, "-(-n // block)", written=True)]
Codes = Annotated[Tensor, Flat(torch.uint8, "-(-n * bits // 8)", written=True)]


def top_of(bits: int, given: int) -> int:
    """The highest level: all that the bits allow if none is given."""
    return given or (1 << bits - 1) - 1


def _steps_of(norms: Tensor, top: int, grid: str = "uniform") -> Tensor:
    """The unit of the levels' values in each block."""
    return norms.div(torch.full_like(norms, top)) if grid == "uniform" else norms.clone()


def _values_of(q: Tensor, top: int, grid: str = "uniform") -> Tensor:
    """The values of levels in units of ``_steps_of``, as float32."""
    if grid == "uniform":
        return q.float()
    magnitude = q.to(torch.int32).abs()
    value = (magnitude + (127 - top) << 23).view(torch.float32).masked_fill_(magnitude == 0, 0.0)
    return torch.where(q < 0, -value, value)


def _quantise(x: Tensor, norms: Tensor, top: int, block: int, key: int, step: int, grid: str = "uniform") -> Tensor:
    """Compute the level of every element, int8."""
    n = x.numel()
    usable = norms.isfinite() & (norms > 0)
    inverse = torch.full_like(norms, top if grid == "uniform" else 1).div_(norms.masked_fill(~usable, math.inf))
    scaled = x.abs() * spread(inverse, n, block)
    shifts = uniform(n, key, step, x.device)
    level = scaled.add_(shifts).floor_() if grid == "uniform" else _power(scaled, shifts, top)
    level = level.clamp_(max=top).masked_fill_(~spread(usable, n, block), 0.0).to(torch.int8)
    return torch.where(x < 0, -level, level)


def _power(share: Tensor, shifts: Tensor, top: int) -> Tensor:
    """Round a fraction of the norm at random to a neighbouring level."""
    scaled = share * 2.0 ** (top - 1)
    word = scaled.view(torch.int32)
    large = word >= 0x3F800000
    fraction = torch.where(large, (word & 0x7FFFFF | 0x3F800000).view(torch.float32) - 1.0, scaled)
    below = torch.where(large, (word >> 23) - 126, 0)
    return below + (fraction + shifts >= 1.0)


def _whole(n: int) -> int:
    """The size of the block that holds ``n`` elements."""
    return max(16, -(-n // 16) * 16)


@declared(merges=True)
def qsgd_encode(
    x: Floats,
    norms: Norms,
    codes: Codes,
    bits: Bits,
    block: Block,
    norm: NormName,
    key: int,
    step: int,
    levels: Levels = 0,
    grid: GridName = "uniform",
) -> None:
    """Round each element at random to a level of its block, so that it is right on average.

        q = sign(x) * min(floor(|x| * s / N + r), s),    decoded = q * N / s

    or, on the grid "powers", to one of its neighbours among 0 and 2**(t - s), t = 1 .. s, decoded = 2**(|q| - s) * N.

    r = (u + 0.5) / 2**16 with u the 16 bits that ``philox`` gives element i: half i % 8 of counter i // 8. A block
    whose norm N is below 2**-120 becomes zeros; one that holds an infinity or a NaN decodes to NaN.

    Args:
        x: float32, n elements; not changed.
        norms: float32, ceil(n / block); the norm of each block.
        codes: uint8, ceil(n * bits / 8); element i in bits i * bits .. of the stream, lowest first, two's complement.
        bits: 2 to 8; fewer mean fewer bytes and a larger variance.
        block: elements that share a norm, a multiple of 16 from 16 to 65536; smaller means less variance, 4 bytes each.
        norm: "linf", the largest magnitude, or "l2", the length: "linf" has far less variance at few bits.
        key: the stream of random numbers, a signed 64-bit integer; different on ranks whose errors must be independent.
        step: step of the random stream; a new one for every call.
        levels: s, from 1 to 2**(bits - 1) - 1; 0 means all of these.
        grid: "uniform" or "powers".

    >>> norms, codes = torch.empty(1), torch.empty(2, dtype=torch.uint8)
    >>> qsgd_encode(torch.tensor([7.0, -7.0, 0.0]), norms, codes, bits=4, block=16, norm="linf", key=1, step=0)
    >>> norms.item(), bytes(codes.tolist()).hex()
    (7.0, '9700')

    Source: D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding", NeurIPS 2017.
    """
    norms.copy_(norms_of(x, block, norm))
    pack_levels(_quantise(x, norms, top_of(bits, levels), block, key, step, grid), bits, codes)


@declared(merges=True)
def qsgd_encode_feedback(
    grad: Written,
    residual: Written,
    norms: Norms,
    codes: Codes,
    bits: Bits,
    block: Block,
    norm: NormName,
    key: int,
    step: int,
    status: Status = None,
    shrink: float = 1.0,
    levels: Levels = 0,
    grid: GridName = "uniform",
) -> None:
    """Encode x = residual + grad as ``qsgd_encode`` does, and keep what the codes do not represent.

        residual = x - shrink * (q * N / s)

    Args:
        grad: float32, n elements. Without ``status`` it is not changed; with it, it receives the old residual.
        residual: float32, n elements.
        norms: float32, ceil(n / block).
        codes: uint8, ceil(n * bits / 8).
        bits: 2 to 8.
        block: a multiple of 16 from 16 to 65536.
        norm: "linf" or "l2". The residual stays bounded only where the variance factor is below 1.
        key: the stream of random numbers, a signed 64-bit integer.
        step: step of the random stream; a new one for every call.
        status: int32 of one element, or None. Its bit 0 is set when an element of x or a norm is not finite; nothing
            clears it here.
        shrink: factor by which the decoder will multiply; rounded to float32.
        levels: s, as ``qsgd_encode`` takes it.
        grid: "uniform" or "powers".

    >>> grad, residual = torch.tensor([7.0, -7.0, 0.0]), torch.tensor([0.0, 0.0, 0.5])
    >>> norms, codes = torch.empty(1), torch.empty(2, dtype=torch.uint8)
    >>> qsgd_encode_feedback(grad, residual, norms, codes, bits=4, block=16, norm="linf", key=1, step=0)
    >>> bytes(codes.tolist()).hex(), residual.tolist()
    ('9700', [0.0, 0.0, 0.5])

    Source: D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding", NeurIPS 2017.
    """
    x = compensate(grad, residual, status)
    norms.copy_(norms_of(x, block, norm))
    top = top_of(bits, levels)
    q = _quantise(x, norms, top, block, key, step, grid)
    pack_levels(q, bits, codes)
    backwards = -(_steps_of(norms, top, grid) * float32(shrink))
    torch.add(x, spread(backwards, x.numel(), block) * _values_of(q, top, grid), out=residual)
    if status is not None:
        status |= ~norms.isfinite().all()


@declared(merges=True)
def qsgd_add_decoded(
    norms: Annotated[Tensor, Rows(torch.float32, "-(-n // block)")],
    codes: Annotated[Tensor, Rows(torch.uint8, "-(-n * bits // 8)")],
    out: Written,
    bits: Bits,
    block: LongBlock,
    scale: float,
    levels: Levels = 0,
    grid: GridName = "uniform",
    fresh: bool = False,
) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (scale * (N / s)) * q.

    Args:
        norms: float32, (W, ceil(n / block)) with contiguous rows: the norms N that ``qsgd_encode`` wrote on each rank.
        codes: uint8, (W, ceil(n * bits / 8)) with contiguous rows: the levels q. Any bytes are safe.
        out: float32, n elements.
        bits: 2 to 8, as encoded.
        block: a multiple of 16, as encoded; any number from n on, such as ``WHOLE``, if the whole tensor has one norm.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.
        levels: s, as encoded.
        grid: "uniform", or "powers", where a level is 2**(|q| - s) * N.
        fresh: true: ``out`` counts as 0, whatever it holds, and is not read.

    >>> out = torch.zeros(3)
    >>> codes = torch.tensor([[0x97, 0x00]], dtype=torch.uint8)
    >>> qsgd_add_decoded(torch.tensor([[7.0]]), codes, out, bits=4, block=16, scale=0.5)
    >>> out.tolist()
    [3.5, -3.5, 0.0]

    Source: D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding", NeurIPS 2017.
    """
    if fresh:
        out.zero_()
    top, block = top_of(bits, levels), min(block, _whole(out.numel()))
    for row_norms, row_codes in zip(norms, codes, strict=True):
        scaled = spread(_steps_of(row_norms, top, grid) * float32(scale), out.numel(), block)
        out += scaled * _values_of(unpack_levels(row_codes, bits, out.numel()), top, grid)


@declared(merges=True)
def round_encode(x: Floats, norm: Norm, codes: Codes, bits: Bits, levels: GivenLevels, key: int, step: int) -> None:
    """Round each element at random to a level, as ``qsgd_encode`` does, with one norm N that was measured before.

        q = sign(x) * min(floor(|x| * s / N + r), s),    decoded = q * N / s

    What is larger than N is cut off there. A norm that is zero or not finite gives codes of zero.

    Args:
        x: float32, n elements; not changed.
        norm: float32, one element.
        codes: uint8, ceil(n * bits / 8), as ``qsgd_encode`` writes them.
        bits: 2 to 8.
        levels: s, from 1 to 2**(bits - 1) - 1.
        key: the stream of random numbers, a signed 64-bit integer.
        step: step of the random stream; a new one for every call.

    >>> codes = torch.empty(1, dtype=torch.uint8)
    >>> round_encode(torch.tensor([2.0, -9.0, 0.0]), torch.tensor([2.0]), codes, bits=2, levels=1, key=1, step=0)
    >>> f"{codes.item():06b}"
    '001101'

    Source: D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding", NeurIPS 2017.
    """
    pack_levels(_quantise(x, norm, levels, _whole(x.numel()), key, step), bits, codes)


@declared(merges=True)
def round_keep(
    residual: Written, norm: Norm, codes: Codes, bits: Bits, levels: GivenLevels, shrink: float, key: int, step: int
) -> None:
    """Encode as ``round_encode`` does, and keep what the codes do not represent: the second of two passes.

        residual = residual - shrink * (q * N / s)

    Args:
        residual: float32, n elements: what is encoded, and then what is left of it.
        norm: float32, one element. One that is not finite leaves NaN.
        codes: uint8, ceil(n * bits / 8).
        bits: 2 to 8.
        levels: s, from 1 to 2**(bits - 1) - 1.
        shrink: factor by which the decoder will multiply; rounded to float32.
        key: the stream of random numbers, a signed 64-bit integer.
        step: step of the random stream; that of ``round_encode``.

    >>> x, codes = torch.tensor([2.0, -9.0, 0.0]), torch.empty(1, dtype=torch.uint8)
    >>> round_keep(x, torch.tensor([2.0]), codes, bits=2, levels=1, shrink=1.0, key=1, step=0)
    >>> x.tolist()
    [0.0, -7.0, 0.0]

    Source: as ``round_encode``.
    """
    n = residual.numel()
    q = _quantise(residual, norm, levels, _whole(n), key, step)
    pack_levels(q, bits, codes)
    residual += spread(-(_steps_of(norm, levels) * float32(shrink)), n, _whole(n)) * q


_FRACTION = 23
_NONFINITE = 255

Rounding = Annotated[str, Names(("random", "nearest"))]
Bases = Annotated[Tensor, Flat(torch.uint8, "-(-n // block)", written=True)]
Powers = Annotated[Tensor, Flat(torch.uint8, "n", written=True)]


def _write_powers(x: Tensor, bases: Tensor, codes: Tensor, rounding: str, block: int, key: int, step: int) -> None:
    """Write bases and codes."""
    n, word = x.numel(), x.view(torch.int32)
    magnitude = word & 0x7FFFFFFF
    largest = torch.nn.functional.pad(magnitude, (0, -n % block)).view(-1, block).amax(dim=1) >> _FRACTION
    base = (largest - 126).clamp_(min=0).masked_fill_(largest == _NONFINITE, _NONFINITE)
    bases.copy_(base.to(torch.uint8))
    exponent = (magnitude + _carries(n, rounding, key, step, x.device) >> _FRACTION).clamp_(max=254)
    code = (exponent - spread(base, n, block)).clamp_(min=0) | (word >> 24 & 0x80)
    codes.copy_(code.masked_fill_(spread(base == _NONFINITE, n, block), 0).to(torch.uint8))


def _dequantise(bases: Tensor, codes: Tensor, block: int, scale: float) -> Tensor:
    """Decode the elements and multiply them by ``scale``, a float32."""
    n, code = codes.numel(), codes.to(torch.int32)
    exponent = (spread(bases.to(torch.int32), n, block) + (code & 0x7F)).clamp_(max=255)
    power = (exponent << _FRACTION).view(torch.float32).masked_fill_(code & 0x7F == 0, 0.0)
    scales = torch.full_like(bases, scale, dtype=torch.float32).masked_fill_(bases == _NONFINITE, torch.nan)
    return spread(scales, n, block) * torch.where(code > 0x7F, -power, power)


def _carries(n: int, rounding: str, key: int, step: int, device: torch.device) -> Tensor:
    """The integer that is added to the bits of each element."""
    if rounding == "nearest":
        return torch.full((n,), 1 << _FRACTION - 1, dtype=torch.int32, device=device)
    words = philox_words(0, -(-n // 4), key, step, device).view(-1)[:n]
    return (words & (1 << _FRACTION) - 1).to(torch.int32)


@declared(merges=True)
def natural_encode(
    x: Floats, bases: Bases, codes: Powers, rounding: Rounding, block: Block, key: int, step: int
) -> None:
    """Round each element to a power of two, either at random so that it is right on average, or to the nearest.

        |x| = 2**e (1 + f)  becomes  2**(e + 1) with probability f, else 2**e

    The carry of bits(|x|) + r, r the lowest 23 bits of word i of ``philox`` for element i, has exactly this
    probability. The nearest power is that of bits(|x|) + 2**22. Codes hold exponents of a window of 127 that ends above
    the largest element of each block; what lies below becomes 0. A block that holds an infinity or a NaN decodes to
    NaN, and nothing is rounded up beyond 2**127.

    Args:
        x: float32, n elements; not changed.
        bases: uint8, ceil(n / block): the biased exponent below each block's window, 255 where it is not finite.
        codes: uint8, n: sign << 7 | m, m = 0 for zero, else the biased exponent less that base.
        rounding: "random" or "nearest".
        block: elements that share a window, a multiple of 16 from 16 to 65536.
        key: the stream of random numbers, a signed 64-bit integer; different on ranks whose errors must be independent.
        step: step of the random stream; a new one for every call.

    >>> bases, codes = torch.empty(1, dtype=torch.uint8), torch.empty(3, dtype=torch.uint8)
    >>> natural_encode(torch.tensor([1.0, -0.5, 0.0]), bases, codes, "random", block=16, key=1, step=0)
    >>> bases.item(), codes.tolist()
    (1, [126, 253, 0])

    Source: S. Horvath, C.-Y. Ho, L. Horvath, A. N. Sahu, M. Canini, P. Richtarik, "Natural Compression for Distributed
    Deep Learning", MSML 2022.
    """
    _write_powers(x, bases, codes, rounding, block, key, step)


@declared(merges=True)
def natural_encode_feedback(
    grad: Written,
    residual: Written,
    bases: Bases,
    codes: Powers,
    rounding: Rounding,
    block: Block,
    key: int,
    step: int,
    status: Status = None,
) -> None:
    """Encode x = residual + grad as ``natural_encode`` does, and keep what the codes do not represent.

        residual = x - decoded

    Args:
        grad: float32, n elements. Without ``status`` it is not changed; with it, it receives the old residual.
        residual: float32, n elements.
        bases: uint8, ceil(n / block).
        codes: uint8, n.
        rounding: "random" or "nearest".
        block: a multiple of 16 from 16 to 65536.
        key: the stream of random numbers, a signed 64-bit integer.
        step: step of the random stream; a new one for every call.
        status: int32 of one element, or None. Its bit 0 is set when an element of x is not finite; nothing clears it
            here.

    >>> grad, residual = torch.tensor([1.0, -0.75]), torch.tensor([0.0, 0.125])
    >>> bases, codes = torch.empty(1, dtype=torch.uint8), torch.empty(2, dtype=torch.uint8)
    >>> natural_encode_feedback(grad, residual, bases, codes, "nearest", block=16, key=1, step=0)
    >>> codes.tolist(), residual.tolist()
    ([126, 253], [0.0, -0.125])

    Source: as ``natural_encode``.
    """
    x = compensate(grad, residual, status)
    _write_powers(x, bases, codes, rounding, block, key, step)
    torch.add(x, _dequantise(bases, codes, block, -1.0), out=residual)


@declared(merges=True)
def natural_add_decoded(
    bases: Annotated[Tensor, Rows(torch.uint8, "-(-n // block)")],
    codes: Annotated[Tensor, Rows(torch.uint8, "n")],
    out: Written,
    block: Block,
    scale: float,
) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + scale * (sign 2**(base + m - 127)).

    Args:
        bases: uint8, (W, ceil(n / block)) with contiguous rows; 255 makes its block NaN.
        codes: uint8, (W, n) with contiguous rows. Any bytes are safe: an exponent beyond 254 reads as an infinity.
        out: float32, n elements.
        block: a multiple of 16 from 16 to 65536, as encoded.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    >>> out = torch.zeros(3)
    >>> bases, codes = torch.tensor([[1]], dtype=torch.uint8), torch.tensor([[126, 253, 0]], dtype=torch.uint8)
    >>> natural_add_decoded(bases, codes, out, 16, 0.5)
    >>> out.tolist()
    [0.5, -0.25, 0.0]

    Source: as ``natural_encode``.
    """
    for row_bases, row_codes in zip(bases, codes, strict=True):
        out += _dequantise(row_bases, row_codes, block, float32(scale))


SEGMENT = 4096
_USUAL = 40

Table = Annotated[Tensor, Flat(torch.float32, "4 * -(-n // SEGMENT)", written=True)]


def _write_moments(x: Tensor, table: Tensor, centred: bool) -> None:
    """Fill the table of moments row by row."""
    n, rows = x.numel(), table.view(-1, 4)
    parts = torch.nn.functional.pad(x, (0, -n % SEGMENT)).view(-1, SEGMENT)
    rows[:, 0] = (parts.view(torch.int32) & 0x7FFFFFFF).amax(1).view(torch.float32)
    rows[:, 1] = parts[:, 0] if centred else 0.0
    inside = torch.arange(parts.numel(), device=x.device).view_as(parts) < n
    smaller = power_of_two(-_exponents(rows[:, 0])).unsqueeze(1)
    distance = ((parts - rows[:, 1:2]) * smaller).masked_fill_(~inside, 0.0)
    rows[:, 2], rows[:, 3] = lane_sums(distance), lane_sums(distance * distance)


def _exponents(largest: Tensor) -> Tensor:
    exponents = exponent_of(largest)
    return torch.where(exponents.abs() <= _USUAL, 0, exponents)


@declared(merges=True)
def moments(x: Floats, table: Table, centred: bool) -> None:
    """Measure each segment of 4096 elements: the largest |x|, origin o, sum of x - o, sum of (x - o)**2.

    Where squares might vanish or overflow the sums are in units of a power of two that follows from the largest |x|.

    Args:
        x: float32, n elements; not changed.
        table: float32, 4 * ceil(n / 4096): four numbers for each segment, in this order. A NaN is the largest of all.
        centred: the origin is the segment's first element, for a variance; else 0, for a length.

    >>> table = torch.empty(4)
    >>> moments(torch.tensor([3.0, -5.0, 1.0]), table, centred=True)
    >>> table.tolist()
    [5.0, 3.0, -10.0, 68.0]
    """
    _write_moments(x, table, centred)


@declared(merges=True)
def moments_feedback(grad: Written, residual: Written, table: Table, centred: bool, status: Status = None) -> None:
    """Put x = residual + grad into ``residual`` and measure it as ``moments`` does: the first of two passes.

    Args:
        grad: float32, n elements. Without ``status`` it is not changed; with it, it receives the old residual.
        residual: float32, n elements; receives x.
        table: float32, 4 * ceil(n / 4096).
        centred: true: the deviation is measured, too, as for ``moments``.
        status: int32 of one element, or None: bit 0 is set where an element of x is not finite.

    >>> residual, table = torch.tensor([1.0, -1.0, 0.5]), torch.empty(4)
    >>> moments_feedback(torch.tensor([2.0, -4.0, 0.5]), residual, table, centred=True)
    >>> residual.tolist(), table.tolist()
    ([3.0, -5.0, 1.0], [5.0, 3.0, -10.0, 68.0])
    """
    residual.copy_(compensate(grad, residual, status))
    _write_moments(residual, table, centred)


NORMS_OF_MOMENTS = ("largest", "length", "clipped")


@declared(threads=False, merges=True)
def moments_norm(
    table: Annotated[Tensor, Flat(torch.float32, "4 * -(-n // SEGMENT)")],
    norm: Annotated[Tensor, Flat(torch.float32, "1", written=True)],
    kind: Annotated[str, Names(NORMS_OF_MOMENTS)],
    factor: Annotated[float, Where("0 <= factor < math.inf", "a finite number >= 0")],
    n: Annotated[int, Where("n > 0", "> 0")],
) -> None:
    """Compute one norm of the whole tensor from its moments: N = factor max|x|, factor |x|, or min(max|x|, factor
    deviation).

    The sums of the segments are added in float64, as a tree. A factor or a deviation of 0, or one that is not finite,
    clips nothing. An N below 2^-120 becomes 0.

    Args:
        table: float32, 4 * ceil(n / 4096), as ``moments`` writes it: centred for "clipped" with a factor above 0, and
            not centred for "length".
        norm: float32, 1 element: receives N. NaN if x has one.
        kind: "largest", "length" or "clipped".
        factor: >= 0, rounded to float32.
        n: elements of the tensor, > 0.

    >>> x, table, norm = torch.tensor([0.0, 0.0, 0.0, 4.0]), torch.empty(4), torch.empty(1)
    >>> moments(x, table, centred=True)
    >>> moments_norm(table, norm, "clipped", 1.0, 4)
    >>> round(norm.item(), 4)
    1.7321

    Source: W. Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning", NeurIPS
    2017, for the clipped one.
    """
    rows = table.view(-1, 4)
    # As an integer NaN is the largest.
    found = rows[:, 0].contiguous().view(torch.int32).amax(0, keepdim=True).view(torch.float32)
    if kind == "length":
        found = _length_of(rows)
    if kind != "clipped":
        found = found * float32(factor)
    elif factor:
        cut = _deviation_of(rows, n) * float32(factor)
        found = torch.where((cut > 0) & cut.isfinite(), torch.minimum(found, cut), found)
    norm.copy_(found.masked_fill(found < TINY, 0.0))


def _units_of(rows: Tensor) -> Tensor:
    """The unit 2^e in which the sums of each segment are counted; those of squares are in its square."""
    return power_of_two(_exponents(rows[:, 0])).double()


def _length_of(rows: Tensor) -> Tensor:
    return sum_of_sums(rows[:, 3].double() * _units_of(rows).square()).sqrt().float()


def _deviation_of(rows: Tensor, n: int) -> Tensor:
    """The standard deviation, from a centred table; exactly zero if all elements are equal."""
    origins, sums, squares = rows[:, 1:].double().unbind(1)
    unit = _units_of(rows)
    sums, squares = sums * unit, squares * unit.square()
    counts = torch.full_like(sums, SEGMENT)
    counts[-1:].fill_(n - SEGMENT * (len(counts) - 1))
    means = origins + sums / counts
    within = (squares - sums * sums / counts).clamp_min_(0.0)
    away = means - sum_of_sums(counts * means) / n
    return (sum_of_sums(within + counts * away * away) / n).sqrt().float()


Short = Annotated[int, Where("16 <= block <= 1024 and block % 16 == 0", "a multiple of 16 from 16 to 1024")]
Nibbles = Annotated[Tensor, Flat(torch.uint8, "-(-n // 2)", written=True)]
Errors = Annotated[Tensor, Flat(torch.uint8, "-(-n // block) * row_bytes(block)", written=True)]


def _nearest(x: Tensor, norms: Tensor, block: int) -> Tensor:
    """The nearest of the 15 levels for every element, as float32; ties go to the even one."""
    usable = norms.isfinite() & (norms > 0)
    inverse = torch.full_like(norms, 7.0).div_(norms.masked_fill(~usable, math.inf))
    rounded = (x * spread(inverse, x.numel(), block)).round_()
    return rounded.masked_fill_(~spread(usable, x.numel(), block), 0.0)


@declared(merges=True)
def loco_encode(x: Floats, norms: Norms, codes: Nibbles, block: Short) -> None:
    """Round each element to the nearest of 15 levels of its block.

        q = round(x * (7 / N)),    decoded = q * (N / 7)

    N is the largest magnitude of the block; ties go to the even level. A block whose N is below 2**-120 becomes zeros;
    one that holds an infinity or a NaN decodes to NaN. ``qsgd_add_decoded`` with 4 bits decodes it.

    Args:
        x: float32, n elements; not changed.
        norms: float32, ceil(n / block): N of each block.
        codes: uint8, ceil(n / 2): two levels a byte in two's complement, the first in the lower half.
        block: elements that share a scale, a multiple of 16 from 16 to 1024.

    >>> norms, codes = torch.empty(1), torch.empty(2, dtype=torch.uint8)
    >>> loco_encode(torch.tensor([7.0, -3.4, 0.4]), norms, codes, block=16)
    >>> norms.item(), bytes(codes.tolist()).hex()
    (7.0, 'd700')

    Source: X. Xie, Z. Lin, K.-C. Toh, P. Zhou, "LoCo: Low-Bit Communication Adaptor for Large-scale Model Training",
    2024.
    """
    norms.copy_(norms_of(x, block, "linf"))
    pack_levels(_nearest(x, norms, block), 4, codes)


@declared(merges=True)
def loco_encode_averaged(
    grad: Written,
    error: Errors,
    norms: Norms,
    codes: Nibbles,
    block: Short,
    weight: float,
    share: float,
    status: Annotated[Tensor, Flat(torch.int32, "1", written=True)],
) -> None:
    """Encode x = grad + weight * m as ``loco_encode`` does, and add the error to the mean m, in codes of 8 bits.

        m = share * m + (x - q * (N / 7))

    m is stored as ``gradwire.kernels.stored`` says: of each block the codes, and their scale.

    Args:
        grad: float32, n elements; becomes m as it was, which stored again gives the bytes that there were.
        error: uint8, ceil(n / block) * (block + 4): m; what fills the last block becomes zeros.
        norms: float32, ceil(n / block).
        codes: uint8, ceil(n / 2).
        block: elements that share a scale, of the payload and of m: a multiple of 16 from 16 to 1024.
        weight: weight of m in x; rounded to float32.
        share: share of m that stays; rounded to float32.
        status: int32 of one element. Its bit 0 is set where a norm or a scale of m is not finite; nothing clears it.

    >>> grad, error = torch.tensor([7.0, -3.4, 0.4]), torch.zeros(20, dtype=torch.uint8)
    >>> norms, codes, status = torch.empty(1), torch.empty(2, dtype=torch.uint8), torch.zeros(1, dtype=torch.int32)
    >>> loco_encode_averaged(grad, error, norms, codes, 16, 0.2, 0.8, status)
    >>> bytes(codes.tolist()).hex(), error.view(torch.int8)[:3].tolist()
    ('d700', [0, -127, 127])

    Source: as ``loco_encode``.
    """
    n, rows = grad.numel(), error.view(-1, row_bytes(block))
    m = read(rows, n)
    x = grad + m * float32(weight)
    grad.copy_(m)
    norms.copy_(norms_of(x, block, "linf"))
    q = _nearest(x, norms, block)
    pack_levels(q, 4, codes)
    lost = x + spread(-_steps_of(norms, 7), n, block) * q
    write(rows, m * float32(share) + lost)
    scales = rows[:, block:].contiguous().view(torch.float32)
    status |= ~(norms.isfinite().all() & scales.isfinite().all())
