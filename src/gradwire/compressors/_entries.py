"""Sparse entries in a stream of variable size, and passes over a gradient a piece at a time.

Law: a stream holds parts end to end, the widest items first, so that each starts at a multiple of its item size; the
first field says how many bytes are in use. An index is 16 bits and the count of its segment of
65536 elements. A form of fixed size stands by for the tensors whose entries would take as much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from gradwire import ops
from gradwire.errors import WireError
from gradwire.ops import _topk
from gradwire.types import Payload

__all__ = [
    "Entries", "add_ranks", "check_places", "few", "fill", "find", "first_guess", "in_use", "pack_bits", "part",
    "pieces", "room_for", "sample", "segments", "take_beyond", "unpack_bits",
]  # fmt: skip

segments = _topk.segments

_PIECE = 1 << 15
_LEAST_ROOM = 1024
_GOLDEN = (math.sqrt(5) - 1) / 2
Keep: TypeAlias = Callable[[int, Tensor], Tensor]
Reader: TypeAlias = "Callable[[Payload, int], list[Entries] | None]"
AddDense: TypeAlias = Callable[[Payload, Tensor, float], None]


def pieces(x: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Offset and slice of pieces whose temporaries stay in a cache; an accelerator takes all of x at once.

    >>> [(begin, len(piece)) for begin, piece in pieces(torch.zeros(40000))]
    [(0, 32768), (32768, 7232)]
    """
    size = _PIECE if x.device.type == "cpu" else max(1, x.numel())
    for begin in range(0, x.numel(), size):
        yield begin, x[begin : begin + size]


def room_for(count: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """Values and the low 16 bits of their indices."""
    return torch.empty(count, device=x.device), torch.empty(count, dtype=torch.int16, device=x.device)


def first_guess(x: Tensor) -> int:
    """For how many entries to make room before they are counted: a 16th of the elements, as sparse methods take fewer.
    Where there are more, a second pass takes them into room that is large enough.
    """
    return max(_LEAST_ROOM, x.numel() // 16)


def take_beyond(x: Tensor, counts: Tensor, high: float, low: float, limit: int) -> tuple[Tensor, Tensor] | None:
    """The elements of a flat tensor that are not in (-low, high), and the low 16 bits of their indices as int16; their
    counts are written. None if there are more than ``limit``.

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


def find(x: Tensor, keep: Keep, limit: int) -> Tensor | None:
    """The increasing indices, int64, of the elements that ``keep(begin, piece)`` marks; None if more than ``limit``.

    >>> find(torch.tensor([3.0, 1.0, 2.0]), lambda begin, piece: piece > 1, limit=2).tolist()
    [0, 2]
    """
    found = [torch.empty(0, dtype=torch.int64, device=x.device)]
    count = 0
    for begin, piece in pieces(x):
        found.append(keep(begin, piece).nonzero().view(-1).add_(begin))
        count += found[-1].numel()
        if count > limit:
            return None
    return torch.cat(found)


def sample(x: Tensor, size: int) -> Tensor:
    """``size`` elements spread evenly over x so that no row length lines up with them; all of a smaller x."""
    n = x.numel()
    if n <= size:
        return x
    step = int(n * _GOLDEN)
    while math.gcd(step, n) > 1:
        step += 1
    return x[torch.arange(size, device=x.device) * step % n]


def fill(used: Tensor, stream: Tensor, *parts: Tensor) -> None:
    """Write the bytes of ``parts`` end to end, and their number into ``used``."""
    end = 0
    for values in parts:
        # A single element counts as contiguous whatever its stride, but cannot be viewed as bytes then.
        whole = values.as_strided(values.shape, (1,))
        stream[end : end + values.nbytes].copy_(whole.view(torch.uint8))
        end += values.nbytes
    used.fill_(end)


def in_use(used: Tensor, stream: Tensor) -> int:
    """What ``used`` says, but never more than there is: a decoder must survive what a peer sent."""
    return min(max(int(used), 0), stream.numel())


def part(stream: Tensor, start: int, count: int, dtype: torch.dtype) -> Tensor:
    """``count`` items of a stream from byte ``start`` on; copied only where they would not be aligned."""
    raw = stream[start : start + count * dtype.itemsize]
    # An empty tensor has no address, but a place in its storage, which need not be aligned either.
    aligned = raw.data_ptr() % dtype.itemsize == 0 == raw.storage_offset() % dtype.itemsize
    return (raw if aligned else raw.clone()).view(dtype)


def pack_bits(bits: Tensor) -> Tensor:
    """Bools as bytes, the first in the lowest bit.

    >>> pack_bits(torch.tensor([True, False, False, True, False, False, False, False, True])).tolist()
    [9, 1]
    """
    whole = torch.zeros(-(-bits.numel() // 8), dtype=torch.int64, device=bits.device)
    whole.view(torch.uint8)[: bits.numel()] = bits
    # Each factor of 2^(56 - 7 i) brings the bit of byte i to place 56 + i.
    return (whole.mul_(0x0102040810204080) >> 56).to(torch.uint8)


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """The first ``count`` bools of ``packed``."""
    spread = packed.long().mul_(0x0101010101010101).bitwise_and_(0x8040201008040201 - (1 << 64))
    return spread.view(torch.uint8)[:count] != 0


class Entries(NamedTuple):
    """What a rank sent: as many values as indices, or a bit for each and the levels of a clear and of a set one."""

    values: Tensor
    low: Tensor
    counts: Tensor
    levels: Tensor | None = None


def add_ranks(payloads: Payload, out: Tensor, scale: float, read: Reader, add_dense: AddDense) -> None:
    """``out += scale * sum of the payloads``, rank after rank, at once where their entries follow each other.

    Args:
        payloads: a row for each rank.
        out: the sum.
        scale: of every payload.
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
        ops.parts_add_decoded(values, low, counts, [empty if x is None else x for x in levels], flat, scale)


def check_places(name: str, counts: Tensor, low: Tensor, n: int) -> None:
    """Refuse counts and indices that do not describe different elements of n.

    Raises:
        WireError: a count is negative, they do not sum to the number of indices, or the indices do not increase.
    """
    if bool((counts < 0).any()) or int(counts.sum()) != low.numel():
        raise WireError(f"{name} counts must be >= 0 and sum to {low.numel()}, got {few(counts)}")
    index = torch.arange(counts.numel(), device=counts.device).repeat_interleave(counts) * _topk.SEGMENT
    index += _topk.low_bits(low)
    if bool((index.diff() <= 0).any()) or bool((index[-1:] >= n).any()):
        raise WireError(f"{name} indices must increase and stay below {n}, got {few(index)}")


def few(values: Tensor) -> str:
    """At most eight of the values, for a message."""
    shown = ", ".join(map(str, values[:8].tolist()))
    return f"[{shown}, ...]" if values.numel() > 8 else f"[{shown}]"
