"""Streams of +1, 0 and -1 in whichever form is smallest; the first byte says which.

    0        2-bit codes in whole 32-bit words, MXNet's layout
    1        a bit for each element, then a bit for each that is not 0: set where it is +1
    2 + b    how many are not 0, as LEB128; their signs; their gaps as Golomb-Rice codes with b low bits, in two streams
    255      how many are not 0, as LEB128; for each a uint32 of twice its index, plus 1 where it is +1

Bits fill bytes from the lowest on, and every part starts at a byte. What lies beyond the end has no meaning.
"""

import torch
from torch import Tensor

from gradwire.ops._bits import pack_bits, unpack_bits
from gradwire.ops._codes import code_bytes, unpack
from gradwire.ops._rice import read_rice, rice_shift, write_rice

__all__ = ["capacity", "read_ternary", "write_ternary"]

DENSE, BITMAP, RICE, WORDS = 0, 1, 2, 255
_LARGEST_SHIFT = 30


def capacity(n: int) -> int:
    """The bytes that any ``n`` elements fit into.

    >>> capacity(17)
    9
    """
    return 1 + code_bytes(n, 2)


def write_ternary(codes: Tensor, stream: Tensor, n: int, words: bool) -> int:
    """Write the smallest form of the 2-bit ``codes`` to the front of ``stream``; the bytes it takes.

    Of equal sizes the lowest number is taken; ``words`` allows the forms 0 and 255 only.
    """
    values = unpack(codes, 2, n)
    places = (values >= 2).nonzero().view(-1)
    signs = values[places] == 3
    coded = [_words(places, signs)] if words else [_bitmap(places, signs, n), _rice(places, signs, n)]
    parts = min([_bytes(DENSE, codes), *coded], key=lambda part: part.numel())
    stream[: parts.numel()] = parts
    return parts.numel()


def read_ternary(stream: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Increasing places and whether they are +1; of bytes that make no sense, as many as do."""
    form, body = int(stream[0]) if stream.numel() else DENSE, stream[1:]
    if form == DENSE:
        values = unpack(_until(body, code_bytes(n, 2)), 2, n)
        places = (values >= 2).nonzero().view(-1)
        return places, values[places] == 3
    if form == BITMAP:
        places = unpack_bits(body, n).nonzero().view(-1)
        return places, unpack_bits(body[-(-n // 8) :], places.numel())
    k, body = _read_count(body, n)
    if form == WORDS:
        entries = _until(body, 4 * k).clone().view(torch.int32).long() & 0xFFFFFFFF
        places = entries >> 1
        rising = (places.diff(prepend=places.new_full((1,), -1)) > 0) & (places < n)
        kept = rising.long().cumprod(0).bool()
        return places[kept], (entries & 1).bool()[kept]
    shift = form - RICE
    if shift > _LARGEST_SHIFT:
        return body.new_empty(0, dtype=torch.int64), body.new_empty(0, dtype=torch.bool)
    signs_end = -(-k // 8)
    low_end = signs_end + -(-k * shift // 8)
    places = read_rice(body[signs_end:low_end], body[low_end:], k, shift, n)
    return places, unpack_bits(body[:signs_end], places.numel())


def _bitmap(places: Tensor, signs: Tensor, n: int) -> Tensor:
    bits = torch.zeros(n, dtype=torch.bool, device=places.device)
    bits[places] = True
    return _bytes(BITMAP, _packed(bits), _packed(signs))


def _rice(places: Tensor, signs: Tensor, n: int) -> Tensor:
    k = places.numel()
    shift = rice_shift(n, k)
    gaps = places.diff(prepend=places.new_full((1,), -1)) - 1
    low = torch.empty(-(-k * shift // 8), dtype=torch.uint8, device=places.device)
    high = low.new_empty(-(-(k + int((gaps >> shift).sum())) // 8))
    write_rice(places, shift, low, high)
    return _bytes(RICE + shift, _count(k, low), _packed(signs), low, high)


def _words(places: Tensor, signs: Tensor) -> Tensor:
    entries = (places << 1) + signs
    data = entries.unsqueeze(1) >> torch.arange(0, 32, 8, device=places.device) & 0xFF
    return _bytes(WORDS, _count(places.numel(), places), data.view(-1).to(torch.uint8))


def _bytes(form: int, *parts: Tensor) -> Tensor:
    return torch.cat([torch.full((1,), form, dtype=torch.uint8, device=parts[0].device), *parts])


def _packed(bits: Tensor) -> Tensor:
    out = torch.empty(-(-bits.numel() // 8), dtype=torch.uint8, device=bits.device)
    pack_bits(bits, out)
    return out


def _count(k: int, like: Tensor) -> Tensor:
    digits = []
    while k >= 128:
        digits.append(k & 127 | 128)
        k >>= 7
    return torch.tensor([*digits, k], dtype=torch.uint8, device=like.device)


def _read_count(body: Tensor, n: int) -> tuple[int, Tensor]:
    """The count and what follows it; 0 where it does not end, or is larger than ``n``."""
    k = 0
    for place, digit in enumerate(body[:5].tolist()):
        k |= (digit & 127) << 7 * place
        if digit < 128:
            return (k if k <= n else 0), body[place + 1 :]
    return 0, body[:0]


def _until(data: Tensor, count: int) -> Tensor:
    return torch.nn.functional.pad(data[:count], (0, max(0, count - data.numel())))
