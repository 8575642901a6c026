"""Streams of variable size, and passes over a gradient a piece at a time.

Invariants:
    * A stream holds parts end to end, those with the widest items first, so that each begins at a multiple of its item
      size. The first field of the payload says how many bytes are in use.
    * A tensor whose entries would take as many bytes as a form of fixed size uses that form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from gradwire.kernels.segments import cache_pieces

__all__ = ["fill", "find", "in_use", "part", "sample"]

_GOLDEN = (math.sqrt(5) - 1) / 2
Keep: TypeAlias = Callable[[int, Tensor], Tensor]


def find(x: Tensor, keep: Keep, limit: int) -> Tensor | None:
    """Find the increasing indices, int64, of the elements that ``keep(begin, piece)`` marks; None if there are more
    than ``limit``.

    >>> find(torch.tensor([3.0, 1.0, 2.0]), lambda begin, piece: piece > 1, limit=2).tolist()
    [0, 2]
    """
    found = [torch.empty(0, dtype=torch.int64, device=x.device)]
    count = 0
    for begin, piece in cache_pieces(x):
        found.append(keep(begin, piece).nonzero().view(-1).add_(begin))
        count += found[-1].numel()
        if count > limit:
            return None
    return torch.cat(found)


def sample(x: Tensor, size: int) -> Tensor:
    """A sample of ``size`` elements, spread evenly over x and not in line with any row length; all of a smaller x."""
    n = x.numel()
    if n <= size:
        return x
    step = int(n * _GOLDEN)
    while math.gcd(step, n) > 1:
        step += 1
    return x[torch.arange(size, device=x.device) * step % n]


def fill(used: Tensor, stream: Tensor, *parts: Tensor) -> None:
    """Write the bytes of ``parts`` end to end, and their number to ``used``."""
    end = 0
    for values in parts:
        # A single element counts as contiguous whatever its stride, but cannot be viewed as bytes then.
        whole = values.as_strided(values.shape, (1,))
        stream[end : end + values.nbytes].copy_(whole.view(torch.uint8))
        end += values.nbytes
    used.fill_(end)


def in_use(used: Tensor, stream: Tensor) -> int:
    """Read the number in ``used``, limited to the room there is, because a decoder must survive any payload."""
    return min(max(int(used), 0), stream.numel())


def part(stream: Tensor, start: int, count: int, dtype: torch.dtype) -> Tensor:
    """View ``count`` items of a stream from byte ``start`` on; they are copied only if they are not aligned."""
    raw = stream[start : start + count * dtype.itemsize]
    # An empty tensor has no address, but a place in its storage, which need not be aligned either.
    aligned = raw.data_ptr() % dtype.itemsize == 0 == raw.storage_offset() % dtype.itemsize
    return (raw if aligned else raw.clone()).view(dtype)
