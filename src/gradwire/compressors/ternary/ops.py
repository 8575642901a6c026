"""Operations on ternary codes: 2 bits an element, and streams of them in whichever form is smallest.

2-bit codes: element i is in byte i // 4, the first in the highest bits, in whole 32-bit words, MXNet's layout: 11 for
+t, 10 for -t, 00 for 0.

A stream of them begins with a byte that says its form:

    0        2-bit codes
    1        a bit for each element, then a bit for each that is not 0: set where it is +1
    2 + b    how many are not 0, as LEB128; their signs; their gaps as Golomb-Rice codes with b low bits, in two streams
    255      how many are not 0, as LEB128; for each a uint32 of twice its index, plus 1 where it is +1

Bits fill bytes from the lowest on, and every part starts at a byte. What lies beyond the end has no meaning.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from gradwire.kernels.arguments import Flat, Floats, Rows, Status, Written
from gradwire.kernels.base import declared
from gradwire.kernels.bits import pack as packed
from gradwire.kernels.bits import unpack_bits
from gradwire.kernels.codes import code_bytes, pack, unpack
from gradwire.kernels.dither import fires
from gradwire.kernels.feedback import compensate
from gradwire.kernels.float32 import float32
from gradwire.kernels.rice import read_rice, rice_shift, write_rice

__all__ = [
    "capacity",
    "dithered_encode",
    "dithered_encode_feedback",
    "ternary_add_decoded",
    "ternary_encode",
    "twobit_add_decoded",
    "twobit_encode",
    "twobit_encode_feedback",
]

Codes = Annotated[Tensor, Flat(torch.uint8, "code_bytes(n, 2)", written=True)]
CodesOfRanks = Annotated[Tensor, Rows(torch.uint8, "code_bytes(n, 2)")]
One = Annotated[Tensor, Flat(torch.float32, "1")]
StepsOfRanks = Annotated[Tensor | None, Rows(torch.float32, "1")]
Used = Annotated[Tensor, Flat(torch.int32, "1", written=True)]


def _select(above: Tensor, below: Tensor, codes: Tensor) -> None:
    pack(torch.where(above, 3, torch.where(below, 2, 0)).to(torch.uint8), 2, codes)


def _beyond(x: Tensor, threshold: float, strict: bool) -> tuple[Tensor, Tensor]:
    t = float32(threshold)
    return (x > t, x < -t) if strict else (x >= t, x <= -t)


def _sizes(payloads: Tensor, threshold: float, scale: float, steps: Tensor | None) -> Tensor:
    """The value that a code of +1 adds for each rank, (W, 1)."""
    step = float32(float32(scale) * float32(threshold))
    return payloads.new_full((payloads.size(0), 1), step, dtype=torch.float32) if steps is None else steps * step


@declared(merges=True)
def twobit_encode(x: Floats, codes: Codes, threshold: float, strict: bool = False) -> None:
    """Write a code for each element by the threshold: 11 if x >= t, 10 if x <= -t, else 00 (so also for NaN).

    Args:
        x: float32, n elements.
        codes: uint8, 4 * ceil(n / 16) bytes; element i in byte i // 4, the first in the highest bits; the tail is 0.
        threshold: t > 0, in the unit of x; rounded to float32.
        strict: true: an element must be beyond the threshold, x > t or x < -t, as Strom has it.

    >>> codes = torch.empty(4, dtype=torch.uint8)
    >>> twobit_encode(torch.tensor([0.5, -0.5, 0.49, 1.3]), codes, 0.5)
    >>> bytes(codes.tolist()).hex()
    'e3000000'
    >>> twobit_encode(torch.tensor([0.5, -0.75, 0.49, 1.3]), codes, 0.5, strict=True)
    >>> bytes(codes.tolist()).hex()
    '23000000'

    Source: Apache MXNet, gradient compression of type "2bit" (2017); N. Strom, "Scalable Distributed DNN Training Using
    Commodity GPU Cloud Computing", INTERSPEECH 2015.
    """
    _select(*_beyond(x, threshold, strict), codes)


@declared(merges=True)
def twobit_encode_feedback(
    grad: Written, residual: Written, codes: Codes, threshold: float, status: Status = None, strict: bool = False
) -> None:
    """Encode r = residual + grad and keep the rest: r >= t: 11, r - t; r <= -t: 10, r + t; else 00, r.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements; becomes what the codes do not say.
        codes: uint8, 4 * ceil(n / 16) bytes, as ``twobit_encode`` writes them.
        threshold: t > 0, in the unit of grad; rounded to float32. The residual drains by at most t a step.
        status: int32, 1 element, or None: bit 0 is set where residual + grad is not finite. Copying ``grad`` back to
            ``residual`` then undoes the step.
        strict: true: an element must be beyond the threshold, as for ``twobit_encode``.

    >>> residual, codes = torch.zeros(2), torch.empty(4, dtype=torch.uint8)
    >>> twobit_encode_feedback(torch.tensor([0.75, -0.25]), residual, codes, 0.5)
    >>> residual, bytes(codes.tolist()).hex()
    (tensor([ 0.2500, -0.2500]), 'c0000000')

    Source: as ``twobit_encode``.
    """
    t = float32(threshold)
    x = compensate(grad, residual, status)
    above, below = _beyond(x, threshold, strict)
    _select(above, below, codes)
    residual.copy_(torch.where(above, x - t, torch.where(below, x + t, x)))


@declared(merges=True)
def twobit_add_decoded(
    codes: CodesOfRanks,
    out: Written,
    threshold: float,
    scale: float,
    steps: StepsOfRanks = None,
    fresh: bool = False,
) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (11: s, 10: -s, 00 and 01: 0), s = scale * threshold.

    Args:
        codes: uint8, (W, 4 * ceil(n / 16)), rows contiguous, as ``twobit_encode`` writes them.
        out: float32, n elements.
        threshold: threshold of the encoder; rounded to float32.
        scale: factor of every payload, rounded to float32; 1 / W for the mean.
        steps: float32, (W, 1), a factor of the threshold for each rank; None: 1.
        fresh: true: ``out`` counts as 0, whatever it holds, and is not read.

    >>> out = torch.zeros(4)
    >>> twobit_add_decoded(torch.tensor([[0xE3, 0, 0, 0]], dtype=torch.uint8), out, 0.5, 1.0)
    >>> out
    tensor([ 0.5000, -0.5000,  0.0000,  0.5000])

    Source: as ``twobit_encode``.
    """
    if fresh:
        out.zero_()
    for row, step in zip(codes, _sizes(codes, threshold, scale, steps), strict=True):
        code = unpack(row, 2, out.numel())
        out += torch.where(code == 3, step, torch.where(code == 2, -step, 0.0))


@declared(merges=True)
def dithered_encode(x: Floats, codes: Codes, level: One) -> None:
    """Write a code for each element by its level: 11 if x_i >= d_i l, 10 if x_i <= -d_i l, else 00 (so also for NaN).

    d_i = 1 + the fractional part of i times the golden ratio, to 23 bits: equal elements do not all fire at once.

    Args:
        x: float32, n elements.
        codes: uint8, 4 * ceil(n / 16) bytes, as ``twobit_encode`` writes them.
        level: float32, 1 element, l > 0, in the unit of x.

    >>> codes = torch.empty(4, dtype=torch.uint8)
    >>> dithered_encode(torch.tensor([1.5, 1.5, -1.5, -1.5]), codes, torch.ones(1))
    >>> f"{codes[0].item():08b}"
    '11001000'
    """
    _select(*fires(x, level), codes)


@declared(merges=True)
def dithered_encode_feedback(
    grad: Written, residual: Written, codes: Codes, threshold: One, level: One, status: Status = None
) -> None:
    """Encode r = residual + grad and keep the rest: r_i >= d_i l: 11, r - t; r_i <= -d_i l: 10, r + t; else 00, r.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements; becomes what the codes do not say.
        codes: uint8, 4 * ceil(n / 16) bytes, as ``twobit_encode`` writes them.
        threshold: float32, 1 element, t > 0: what is sent.
        level: float32, 1 element, l > 0: the least that fires, times the dither d of ``dithered_encode``. From t / 2
            on, what is sent never makes the residual larger.
        status: int32, 1 element, or None: bit 0 is set where residual + grad is not finite. Copying ``grad`` back to
            ``residual`` then undoes the step.

    >>> residual, codes, one = torch.zeros(2), torch.empty(4, dtype=torch.uint8), torch.ones(1)
    >>> dithered_encode_feedback(torch.tensor([1.5, 1.5]), residual, codes, threshold=one, level=one)
    >>> residual.tolist(), f"{codes[0].item():08b}"
    ([0.5, 1.5], '11000000')
    """
    x = compensate(grad, residual, status)
    above, below = fires(x, level)
    _select(above, below, codes)
    residual.copy_(torch.where(above, x - threshold, torch.where(below, x + threshold, x)))


_DENSE, _BITMAP, _RICE, _FORM_OF_WORDS = 0, 1, 2, 255
_LARGEST_SHIFT = 30


def capacity(n: int) -> int:
    """The number of bytes that suffices for any ``n`` elements.

    >>> capacity(17)
    9
    """
    return 1 + code_bytes(n, 2)


def _write_stream(codes: Tensor, stream: Tensor, n: int, words: bool) -> int:
    """Write the smallest form of the 2-bit ``codes`` to the front of ``stream``; return the number of bytes.

    Of equal sizes the lowest number is taken; ``words`` allows the forms 0 and 255 only.
    """
    values = unpack(codes, 2, n)
    places = (values >= 2).nonzero().view(-1)
    signs = values[places] == 3
    coded = [_words(places, signs)] if words else [_bitmap(places, signs, n), _rice(places, signs, n)]
    parts = min([_bytes(_DENSE, codes), *coded], key=lambda part: part.numel())
    stream[: parts.numel()] = parts
    return parts.numel()


def _read_stream(stream: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Read increasing indices and whether they are +1; of invalid bytes, as many as are valid."""
    form, body = int(stream[0]) if stream.numel() else _DENSE, stream[1:]
    if form == _DENSE:
        values = unpack(_until(body, code_bytes(n, 2)), 2, n)
        places = (values >= 2).nonzero().view(-1)
        return places, values[places] == 3
    if form == _BITMAP:
        places = unpack_bits(body, n).nonzero().view(-1)
        return places, unpack_bits(body[-(-n // 8) :], places.numel())
    k, body = _read_count(body, n)
    if form == _FORM_OF_WORDS:
        entries = _until(body, 4 * k).clone().view(torch.int32).long() & 0xFFFFFFFF
        places = entries >> 1
        rising = (places.diff(prepend=places.new_full((1,), -1)) > 0) & (places < n)
        kept = rising.long().cumprod(0).bool()
        return places[kept], (entries & 1).bool()[kept]
    shift = form - _RICE
    if shift > _LARGEST_SHIFT:
        return body.new_empty(0, dtype=torch.int64), body.new_empty(0, dtype=torch.bool)
    signs_end = -(-k // 8)
    low_end = signs_end + -(-k * shift // 8)
    places = read_rice(body[signs_end:low_end], body[low_end:], k, shift, n)
    return places, unpack_bits(body[:signs_end], places.numel())


def _bitmap(places: Tensor, signs: Tensor, n: int) -> Tensor:
    bits = torch.zeros(n, dtype=torch.bool, device=places.device)
    bits[places] = True
    return _bytes(_BITMAP, packed(bits, 1), packed(signs, 1))


def _rice(places: Tensor, signs: Tensor, n: int) -> Tensor:
    k = places.numel()
    shift = rice_shift(n, k)
    gaps = places.diff(prepend=places.new_full((1,), -1)) - 1
    low = torch.empty(-(-k * shift // 8), dtype=torch.uint8, device=places.device)
    high = low.new_empty(-(-(k + int((gaps >> shift).sum())) // 8))
    write_rice(places, shift, low, high)
    return _bytes(_RICE + shift, _count(k, low), packed(signs, 1), low, high)


def _words(places: Tensor, signs: Tensor) -> Tensor:
    entries = (places << 1) + signs
    data = entries.unsqueeze(1) >> torch.arange(0, 32, 8, device=places.device) & 0xFF
    return _bytes(_FORM_OF_WORDS, _count(places.numel(), places), data.view(-1).to(torch.uint8))


def _bytes(form: int, *parts: Tensor) -> Tensor:
    return torch.cat([torch.full((1,), form, dtype=torch.uint8, device=parts[0].device), *parts])


def _count(k: int, like: Tensor) -> Tensor:
    digits = []
    while k >= 128:
        digits.append(k & 127 | 128)
        k >>= 7
    return torch.tensor([*digits, k], dtype=torch.uint8, device=like.device)


def _read_count(body: Tensor, n: int) -> tuple[int, Tensor]:
    """Read the count and the bytes after it; 0 if the count does not end, or is larger than ``n``."""
    k = 0
    for place, digit in enumerate(body[:5].tolist()):
        k |= (digit & 127) << 7 * place
        if digit < 128:
            return (k if k <= n else 0), body[place + 1 :]
    return 0, body[:0]


def _until(data: Tensor, count: int) -> Tensor:
    return torch.nn.functional.pad(data[:count], (0, max(0, count - data.numel())))


@declared
def ternary_encode(
    codes: Annotated[Tensor, Flat(torch.uint8, "code_bytes(n, 2)")],
    used: Used,
    stream: Annotated[Tensor, Flat(torch.uint8, "capacity(n)", written=True)],
    n: int,
    words: bool = False,
) -> None:
    """Write the codes unchanged, as a bitmap with signs, or as coded gaps with signs: whichever is smallest.

    The first byte of the stream says which; the forms are described in ``docs/wire.md`` under ``twobit``.

    Args:
        codes: uint8, 4 * ceil(n / 16), as ``twobit_encode`` writes them.
        used: int32, 1 element: the bytes of ``stream`` that are in use, at most one more than ``codes`` has.
        stream: uint8, 1 + 4 * ceil(n / 16); what is not in use is of no meaning.
        n: elements.
        words: instead of a bitmap or gaps, 32 bits for each code that is not zero.

    >>> codes, used = torch.tensor([0, 0, 0, 0b11000000, 0, 0, 0, 0b10], dtype=torch.uint8), torch.empty(1).int()
    >>> stream = torch.empty(9, dtype=torch.uint8)
    >>> ternary_encode(codes, used, stream, n=32)
    >>> used.item(), [f"{byte:08b}" for byte in stream[: used.item()].tolist()]
    (5, ['00000101', '00000010', '00000001', '00010100', '00010010'])
    """
    used.fill_(_write_stream(codes, stream, n, words))


@declared
def ternary_add_decoded(
    streams: Annotated[Tensor, Rows(torch.uint8, "length")],
    out: Written,
    threshold: float,
    scale: float,
    steps: StepsOfRanks = None,
) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (+1: s, -1: -s, 0: 0), s = scale * threshold.

    Bytes from a peer are safe whatever they are; what makes no sense is left out.

    Args:
        streams: uint8, (W, length), rows contiguous, as ``ternary_encode`` writes them; with what is not in use or
            without.
        out: float32, n elements.
        threshold: threshold of the encoder; rounded to float32.
        scale: factor of every payload, rounded to float32; 1 / W for the mean.
        steps: float32, (W, 1), a factor of the threshold for each rank; None: 1.

    >>> out = torch.zeros(4)
    >>> ternary_add_decoded(torch.tensor([[1, 0b1001, 0b10]], dtype=torch.uint8), out, 0.5, 1.0)
    >>> out.tolist()
    [-0.5, 0.0, 0.0, 0.5]
    """
    for row, step in zip(streams, _sizes(streams, threshold, scale, steps), strict=True):
        if row.numel() == 0 or int(row[0]) == _DENSE:
            codes = torch.nn.functional.pad(row[1:], (0, code_bytes(out.numel(), 2)))
            none = torch.zeros_like(step)
            out += torch.cat([none, none, -step, step])[
                unpack(codes[: code_bytes(out.numel(), 2)], 2, out.numel()).int()
            ]
        else:
            places, positive = _read_stream(row, out.numel())
            out.index_add_(0, places, torch.where(positive, step, -step))
