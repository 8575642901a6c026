"""Chosen elements: they are taken from a tensor with their indices, and added to the sum of all ranks.

An index is 16 bits and the count of its segment of 65536 elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from gradwire.compressors.sparse.ops import parts_add_decoded
from gradwire.contrib.compressors.sparse import ops
from gradwire.vocabulary import Payload

__all__ = ["Entries", "add_ranks", "first_guess", "room_for", "take_beyond"]

_LEAST_ROOM = 1024
Reader: TypeAlias = "Callable[[Payload, int], list[Entries] | None]"
AddDense: TypeAlias = Callable[[Payload, Tensor, float], None]


def room_for(count: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate the values and the low 16 bits of their indices."""
    return x.new_empty(count), torch.empty(count, dtype=torch.int16, device=x.device)


def first_guess(x: Tensor) -> int:
    """The number of entries to make room for before they are counted: a 16th of the elements.

    Sparse methods take fewer. Where there are more, a second pass takes them into room that is large enough.
    """
    return max(_LEAST_ROOM, x.numel() // 16)


def take_beyond(x: Tensor, counts: Tensor, high: float, low: float, limit: int) -> tuple[Tensor, Tensor] | None:
    """Take the elements of a flat tensor that are not in (-low, high), with the low 16 bits of their indices as int16;
    their counts are written. Return None if there are more than ``limit``.

    >>> take_beyond(torch.tensor([5.0, 6.0, -7.0]), torch.empty(1, dtype=torch.int32), 6.0, 7.0, limit=2)
    (tensor([ 6., -7.]), tensor([1, 2], dtype=torch.int16))
    """
    values, indices = room_for(min(first_guess(x), max(0, limit)), x)
    ops.take_beyond(x, counts, values, indices, high, low)
    k = int(counts.sum())
    if values.numel() < k <= limit:
        values, indices = room_for(k, x)
        ops.take_beyond(x, counts, values, indices, high, low)
    return None if k > limit else (values[:k], indices[:k])


class Entries(NamedTuple):
    """The entries of a rank: as many values as indices, or a bit for each and the levels of a clear
    and of a set bit.
    """

    values: Tensor
    low: Tensor
    counts: Tensor
    levels: Tensor | None = None


def add_ranks(payloads: Payload, out: Tensor, scale: float, read: Reader, add_dense: AddDense) -> None:
    """Compute ``out += scale * sum of the payloads``, rank after rank, in one call where their entries are adjacent.

    Args:
        payloads: a row for each rank.
        out: the sum.
        scale: factor of every payload.
        read: the entries of one payload, whose places differ; None: it is dense.
        add_dense: adds a payload that is.
    """
    flat, parts = out.view(-1), list[Entries]()
    for rank in range(payloads[0].shape[0]):
        payload = tuple(field[rank] for field in payloads)
        entries = read(payload, flat.numel())
        if entries is not None:
            parts.extend(entries)
            continue
        _add_parts(parts, flat, scale)
        parts.clear()
        add_dense(payload, flat, scale)
    _add_parts(parts, flat, scale)


def _add_parts(parts: list[Entries], flat: Tensor, scale: float) -> None:
    if parts:
        empty = flat.new_empty(0)
        values, low, counts, levels = zip(*parts, strict=True)
        parts_add_decoded(values, low, counts, [empty if x is None else x for x in levels], flat, scale)
