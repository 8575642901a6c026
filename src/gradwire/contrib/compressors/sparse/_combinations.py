"""Numbers of combinations: k places below n as one integer, in the fewest bits that a code of fixed size can have.

The combination p_1 < p_2 < ... < p_k has the number sum_i binomial(p_i, i), which is below binomial(n, k). Any integer
decodes to k different places below n, so a decoder needs no check. Numbers are written on the device, as sums of a
table's limbs of 16 bits, and read on the host, with Python's integers.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

__all__ = ["number_width", "places_of", "read_numbers", "write_numbers"]

_BATCH = 256
"""Numbers that are written at a time, so that their limbs take little room beside a tensor."""

_FINITE = 1000
"""Bits of the largest integers that are looked up as floats."""


def number_width(n: int, k: int) -> int:
    """The bytes of a number.

    >>> number_width(4096, 64), number_width(3, 3)
    (59, 0)
    """
    return -(-(math.comb(n, k) - 1).bit_length() // 8)


@lru_cache(8)
def _binomials(n: int, k: int) -> tuple[list[list[int]], list[Sequence[float]]]:
    """The binomials of the places below ``n``, a list for each i from 0 to ``k``; and the same to look them up in, as
    floats if these reach so far.
    """
    rows = [[1] * n]
    for _ in range(k):
        rows.append(list(accumulate(rows[-1][:-1], initial=0)))
    return rows, [array("d", row) if row[-1].bit_length() < _FINITE else row for row in rows]


@lru_cache(8)
def _limbs(n: int, k: int, device: torch.device) -> Tensor:
    """The binomials for i from 1 to ``k``: (k, n, limbs of 16 bits, the lowest first)."""
    rows = _binomials(n, k)[0][1:]
    # A sum of binomials is below binomial(n, k). With k above n / 2 the table has larger ones, which no number needs.
    largest = max(row[-1] for row in rows)
    width = 2 * (max(number_width(n, k), -(-largest.bit_length() // 8)) // 2 + 1)
    data = bytearray(b"".join(each.to_bytes(width, "little") for row in rows for each in row))
    return torch.frombuffer(data, dtype=torch.int16).view(k, n, -1).to(device)


def _sizes(n: int, k: int) -> tuple[int, int]:
    """The sizes of the table: powers of two, because the last chunks of tensors have many sizes."""
    return 1 << (n - 1).bit_length(), 1 << (k - 1).bit_length()


def write_numbers(places: Tensor, n: int, out: Tensor) -> None:
    """Write the number of each row.

    Args:
        places: int64 of shape (rows, k), increasing in each row, below ``n``.
        n: elements that the places are among.
        out: uint8 of shape (rows, ``number_width(n, k)``).

    >>> out = torch.empty(2, 1, dtype=torch.uint8)
    >>> write_numbers(torch.tensor([[0, 1, 2], [1, 3, 4]]), 5, out)
    >>> out.tolist()
    [[0], [8]]
    """
    k = places.shape[1]
    table, which = _limbs(*_sizes(n, k), places.device), torch.arange(k, device=places.device)
    for own, into in zip(torch.split(places, _BATCH), torch.split(out, _BATCH), strict=True):
        limbs = (table[which, own].int() & 0xFFFF).sum(1)
        for i in range(1, limbs.shape[1]):
            limbs[:, i] += limbs[:, i - 1] >> 16
        low = ((limbs & 0xFFFF) ^ 0x8000) - 0x8000
        into.copy_(low.to(torch.int16).view(torch.uint8)[:, : out.shape[1]])


def read_numbers(numbers: Tensor, n: int, k: int) -> Iterator[Sequence[int]]:
    """Read the places of each row that ``write_numbers`` wrote."""
    for row in numbers.tolist():
        yield places_of(int.from_bytes(bytes(row), "little"), n, k)


def places_of(number: int, n: int, k: int) -> Sequence[int]:
    """The ``k`` places below ``n`` of a number >= 0, increasing.

    >>> places_of(8, 5, 3)
    [1, 3, 4]
    """
    (rows, keys), places, end = _binomials(*_sizes(n, k)), [0] * k, n
    for i in range(k, 0, -1):
        row, key = rows[i], number if keys[i] is rows[i] else _as_float(number)
        place = max(bisect_right(keys[i], key, 0, end) - 1, i - 1)
        # A rounded number may be on the other side of a binomial.
        if row[place] > number:
            place -= 1
        elif place + 1 < end and row[place + 1] <= number:
            place += 1
        end = places[i - 1] = place
        number -= row[place]
    return places


def _as_float(number: int) -> float:
    """The nearest float; what is the number of no combination may be too large for one."""
    return float(number) if number.bit_length() < _FINITE else math.inf
