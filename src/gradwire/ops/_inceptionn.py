"""INCEPTIONN's tagged codes: 0, 8, 16 or 32 bits for each element, by its magnitude.

    tag 0: |x| < 2**-bound                nothing, decoded as 0
    tag 1: |x| < 2**(7 - bound), and < 1  sign << 7 | q, q = min(round(|x| 2**bound), 127), decoded as q 2**-bound
    tag 2: |x| < 1                        sign << 15 | q, q = min(round(|x| 2**15), 32767), decoded as q 2**-15
    tag 3: all others, and NaN            the float32

A stream is one byte of form; in form 1 the float32 of all elements follow, in form 0 the tags, element i in the bits
2 (i % 4) of byte i // 4, and then the codes of all elements, one after the other, little-endian.
"""

import torch
from torch import Tensor

from gradwire.errors import is_int, require

__all__ = ["capacity", "check_bound", "decode", "encode", "tag_bytes"]

_ONE = 127 << 23


def check_bound(op: str, bound: int) -> None:
    require(is_int(bound, 1, 15), f"{op}.bound", "an integer from 1 to 15", bound)


def tag_bytes(n: int) -> int:
    return -(-n // 4)


def capacity(n: int) -> int:
    """The most bytes that a stream of ``n`` elements takes: its form and the elements as they are."""
    return 1 + 4 * n if n else 0


def encode(x: Tensor, used: Tensor, stream: Tensor, bound: int) -> None:
    """Write the stream, and how long it is; what is behind it stays."""
    n, start = x.numel(), 1 + tag_bytes(x.numel())
    used.zero_()
    if n == 0:
        return
    tag, word = _classify(x, bound)
    size = 1 << tag >> 1
    end = size.cumsum(0)
    coded = torch.zeros(start + 4 * n + 1, dtype=torch.uint8, device=x.device)
    coded[1:start] = _pack(tag)
    for byte in range(4):
        # What an element does not need goes to the last place, which nobody reads.
        place = torch.where(size > byte, start + end - size + byte, start + 4 * n)
        coded[place] = (word >> 8 * byte & 0xFF).to(torch.uint8)
    raw = torch.cat([torch.ones(1, dtype=torch.uint8, device=x.device), x.view(torch.uint8)])
    fits = start + end[-1:] < 1 + 4 * n
    used.copy_(torch.where(fits, start + end[-1:], 1 + 4 * n))
    inside = torch.arange(1 + 4 * n, device=x.device) < used
    stream.copy_(torch.where(inside, torch.where(fits, coded[: 1 + 4 * n], raw), stream))


def decode(stream: Tensor, n: int, bound: int) -> Tensor:
    """The elements; what a stream that is too short lacks is read as zero."""
    start = 1 + tag_bytes(n)
    padded = torch.nn.functional.pad(stream, (0, max(0, start + 4 * n - stream.numel())))
    shifts = torch.arange(0, 8, 2, device=stream.device)
    tag = (padded[1:start, None].long() >> shifts & 3).view(-1)[:n]
    size = 1 << tag >> 1
    begin = start + size.cumsum(0) - size
    parts = [torch.where(size > byte, padded[begin + byte].long() << 8 * byte, 0) for byte in range(4)]
    word = torch.stack(parts).sum(0)
    coded = _values(tag, word, bound)
    raw = padded[1 : 1 + 4 * n].clone().view(torch.float32)
    return torch.where(padded[0] == 1, raw, coded)


def _classify(x: Tensor, bound: int) -> tuple[Tensor, Tensor]:
    """The tag of each element, and its code in the lowest bits of an int64."""
    bits = x.view(torch.int32).long() & 0xFFFFFFFF
    magnitude, sign = bits & 0x7FFFFFFF, bits >> 31
    borders = 127 - bound << 23, min(134 - bound << 23, _ONE), _ONE
    tag = torch.stack([magnitude >= border for border in borders]).sum(0)
    below = torch.where(magnitude < _ONE, x.abs(), 0.0)
    byte = (below * 2.0**bound).round().clamp_(max=127).long() | sign << 7
    short = (below * 2.0**15).round().clamp_(max=32767).long() | sign << 15
    return tag, torch.where(tag == 1, byte, torch.where(tag == 2, short, bits))


def _values(tag: Tensor, word: Tensor, bound: int) -> Tensor:
    byte = (word & 0x7F).float() * 2.0**-bound * (1 - (word >> 6 & 2)).float()
    short = (word & 0x7FFF).float() * 2.0**-15 * (1 - (word >> 14 & 2)).float()
    whole = ((word ^ 2**31) - 2**31).to(torch.int32).view(torch.float32)
    fixed = torch.where(tag == 1, byte, torch.where(tag == 2, short, 0.0))
    return torch.where(tag == 3, whole, fixed)


def _pack(tag: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(tag, (0, -tag.numel() % 4)).view(-1, 4)
    return (padded << torch.arange(0, 8, 2, device=tag.device)).sum(1).to(torch.uint8)
