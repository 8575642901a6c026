"""EDEN: blocks under two random rotations, whose coordinates are rounded to the nearest value of a normal quantiser.

A block of B elements, in units of the power of two below its largest, becomes y = H E H D x: D and E flip signs at
random, and H is the Hadamard matrix of +1 and -1 as in ``_thc``, so that y / B has the length of x. Of y the first
``kept`` coordinates are sent, each as the nearest of 2**bits values c for a normal distribution of their root mean
square. The block is decoded as s D H E H c / B with s = (|y|^2 / <y, c>) / kept, sums over what is sent: then the
decoded block's product with x is |x|^2 where all coordinates are sent.

Or ``group`` coordinates, 16, 32 or 64, of z = D y share a code of 8 bits: which of 256 words c of +1 and -1 has the
largest product with them; what is decoded is D c in place of c. Words are rows of a Hadamard matrix, and without the
signs in between the search for the best one would undo the second rotation within a group. Word (q, p), q < 128 /
group, has a minus at coordinate i where the quadratic form q of the bits of i plus the number of bits that i and p have
in common is odd; the highest bit of a code is the sign of the whole word. So the products with all words of one q are a
Hadamard transform. With 16 these are the Nordstrom-Robinson code.

What is left behind the whole blocks of a tensor is cut at powers of two, the largest first, until padding with zeros
adds no more than ``SPARE`` coordinates; no block has fewer than ``SMALLEST``.
"""

import functools
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire._once import once
from gradwire.kernels.float32 import float32
from gradwire.kernels.hadamard import flip

__all__ = [
    "FORMS",
    "SMALLEST",
    "STEP",
    "blocks_of",
    "code_bytes",
    "kept",
    "limits",
    "lookup",
    "parts",
    "quantiser",
    "signs_of",
    "table",
    "words",
]

SMALLEST = 64
SPARE = 128
STEP = 16
"""Coordinates of a block are sent in multiples of this number, or of ``group``: its codes begin at a byte."""

FORMS: dict[int, tuple[tuple[tuple[int, int], ...], ...]] = {
    16: (
        (),
        ((0, 3), (1, 2)),
        ((0, 2), (0, 3), (1, 3)),
        ((0, 1), (0, 2), (1, 2), (1, 3)),
        ((0, 1), (0, 2), (0, 3), (2, 3)),
        ((0, 1), (1, 2), (2, 3)),
        ((0, 1), (0, 3), (1, 3), (2, 3)),
        ((0, 2), (1, 2), (1, 3), (2, 3)),
    ),
    32: ((), ((0, 3), (1, 2)), ((0, 2), (0, 3), (1, 3)), ((0, 2), (1, 2), (1, 3))),
    64: ((), ((0, 5), (1, 4), (2, 3))),
}
"""Quadratic forms of the bits of a number, each as the pairs of bits whose products are added: of 16 a Kerdock set, the
difference of any two of which has full rank."""

_CENTROIDS = (
    (0.797884561,),
    (0.452780035, 1.510417608),
    (0.245094179, 0.756005281, 1.343909279, 2.151945705),
    (0.12839503, 0.388048299, 0.656759119, 0.942340456, 1.256231197, 1.618046386, 2.069017227, 2.732589571),
)
"""The positive values with the least mean square error for a normal variable, for 1 to 4 bits (Lloyd and Max)."""


class BlockRun(NamedTuple):
    """A run of adjacent blocks of one size.

    Attributes:
        begin: the first element, which is the first coordinate, too: only the last block of a tensor is padded.
        rows: number of blocks.
        size: coordinates of each.
        scale: the index of the first one's scale.
        code: the index of the first coordinate's code.
    """

    begin: int
    rows: int
    size: int
    scale: int
    code: int


@functools.lru_cache(1024)
def parts(n: int, block: int, sent: int, group: int = 1) -> tuple[BlockRun, ...]:
    """The runs of blocks of ``n`` elements, the whole ones first.

    >>> [(part.begin, part.rows, part.size) for part in parts(3 * 1024 + 700, 1024, 1024)]
    [(0, 3, 1024), (3072, 1, 512), (3584, 1, 256)]
    """
    full, rest = divmod(n, block)
    found = [BlockRun(0, full, block, 0, 0)] if full else []
    scale, code = full, full * sent
    for size in _cut(rest):
        found.append(BlockRun(n - rest, 1, size, scale, code))
        scale, code, rest = scale + 1, code + kept(size, block, sent, group), rest - size
    return tuple(found)


def _cut(rest: int) -> Iterator[int]:
    while rest > 0:
        padded = max(SMALLEST, 1 << (rest - 1).bit_length())
        size = padded if padded - rest <= SPARE else padded // 2
        yield size
        rest -= size


def kept(size: int, block: int, sent: int, group: int = 1) -> int:
    """The number of coordinates sent of a block of ``size``, if ``sent`` are sent of a whole block.

    >>> kept(1024, 1024, 256), kept(64, 1024, 256), kept(64, 1024, 16)
    (256, 16, 16)
    """
    step = max(STEP, group)
    return -(-size * sent // (block * step)) * step


@functools.lru_cache(1024)
def blocks_of(n: int, block: int) -> int:
    """The number of scales of ``n`` elements."""
    return sum(part.rows for part in parts(n, block, block))


@functools.lru_cache(1024)
def code_bytes(n: int, block: int, bits: int, sent: int, group: int = 1) -> int:
    """The number of bytes of the codes of ``n`` elements."""
    found = parts(n, block, sent, group)
    return sum(part.rows * kept(part.size, block, sent, group) for part in found) * bits // (8 * group)


def signs_of(count: int, seed: Tensor) -> tuple[Tensor, Tensor]:
    """The signs that D and E give to so many elements."""
    ones = torch.ones(count, dtype=torch.float32, device=seed.device)
    key = seed[0].long() & 0xFFFFFFFF
    return flip(ones, key, 0), flip(ones, key, 1)


@once
def quantiser(bits: int, device: torch.device) -> Tensor:
    """The values of the codes, from the smallest magnitude to the largest, then their negatives."""
    positive = torch.tensor(_CENTROIDS[bits - 1], dtype=torch.float32, device="cpu")
    return torch.cat([positive, -positive]).to(device)


@functools.cache
def limits(bits: int) -> tuple[float, ...]:
    """The magnitudes from which on the next value is nearer, rounded to float32."""
    return tuple(float32((low + high) / 2) for low, high in pairwise(_CENTROIDS[bits - 1]))


@once
def words(group: int, device: torch.device) -> Tensor:
    """The values of the codes of groups, without the common sign: (128, group), rows of one form together.

    >>> words(32, torch.device("cpu"))[33, :4].tolist()
    [1.0, -1.0, 1.0, -1.0]
    """
    place = torch.arange(group, device="cpu")
    forms = torch.stack([sum((place >> a & place >> b & 1 for a, b in form), 0 * place) for form in FORMS[group]])
    common = torch.zeros(group, group, dtype=torch.int64, device="cpu")
    for bit in range(group.bit_length() - 1):
        common += (place >> bit & 1).unsqueeze(1) & (place >> bit & 1)
    odd = (forms.unsqueeze(1) + common) & 1
    return (1.0 - 2.0 * odd).view(128, group).to(device)


@once
def lookup(bits: int, group: int, device: torch.device) -> Tensor:
    """The lookup table of a kernel on a GPU: ``quantiser`` and then ``limits``, or ``words`` row by row."""
    if group != 1:
        return words(group, device).view(-1)
    above = torch.tensor(limits(bits), dtype=torch.float32, device="cpu")
    return torch.cat([quantiser(bits, above.device), above]).to(device)


@once
def table(bits: int, group: int) -> Tensor:
    """The lookup table of a kernel on a CPU.

    That is the same of single coordinates; or the minus signs of ``words`` as bits, 16 coordinates to a number, the
    first in its lowest bit.
    """
    cpu = torch.device("cpu")
    if group == 1:
        return lookup(bits, group, cpu)
    signs = (words(group, cpu) < 0).view(128, -1, 16).long() << torch.arange(16, device="cpu")
    return signs.sum(2).to(torch.int32).to(torch.int16).contiguous()
