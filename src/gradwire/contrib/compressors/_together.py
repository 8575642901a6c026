"""The tensors of a bucket as methods of several rounds take them: as pieces of one tensor, for calls on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

from torch import Tensor

from gradwire.kernels import Each, Pieces
from gradwire.vocabulary import Payload

__all__ = ["each_or_one", "together"]


def together(tensors: Sequence[Tensor], payloads: Sequence[Payload]) -> list[tuple[list[int], Tensor, Payload]]:
    """The tensors that have elements, with their numbers, flat, and with their payloads: as ``Pieces`` if each field
    lies in one tensor, else one by one.
    """
    full = [i for i, tensor in enumerate(tensors) if tensor.numel()]
    flat = [tensors[i].view(-1) for i in full]
    found = [Pieces.of(views) for views in (flat, *zip(*(payloads[i] for i in full), strict=True))] if full[1:] else []
    if found and None not in found:
        whole, *fields = cast("list[Tensor]", found)
        return [(full, whole, tuple(fields))]
    return [([i], x, payloads[i]) for i, x in zip(full, flat, strict=True)]


@lru_cache(1024)
def each_or_one(*numbers: int) -> int:
    """The number of a single tensor, or those of all pieces: one object for equal ones.

    >>> each_or_one(5), each_or_one(5, -7) is each_or_one(5, -7)
    (5, True)
    """
    return cast(int, Each(numbers)) if len(numbers) > 1 else numbers[0]
