"""Units of pushes and pulls, and how small ones share a message.

A push is a list of units, each with its step and its bytes; a pull is a list of units, each with its step. A unit is a
key on one server, or a list of small keys that workers repeatedly name together and whose tensors are joined end to
end. A message costs both sides as much work as a hundred kilobytes of a large key. So the small units of a call share a
message, and the keys of a list cost as much as one key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeAlias, TypeVar

import torch
from torch import Tensor

from gradwire.kvstore.protocol.buffers import lease
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.merge import sums
from gradwire.kvstore.protocol.messages import CHUNK, MAX_ITEMS
from gradwire.kvstore.protocol.payloads import layout_of
from gradwire.memory import facts
from gradwire.vocabulary import align

__all__ = [
    "ALIGNMENT",
    "MAX_BATCH",
    "MAX_LISTS",
    "SMALL",
    "Backoff",
    "Unit",
    "UnitBatches",
    "element_offsets",
    "is_small",
    "joinable",
    "offsets",
    "packed",
    "quoted",
    "unpacked",
]

SMALL = CHUNK // 8
"""The largest value, in bytes, that shares a message with others."""

MAX_NAME = 100
"""The longest name, in bytes, of a key that shares a message: the names of all must fit into one header."""

MAX_BATCH = 4 * CHUNK
"""The most bytes that a message with several keys carries."""

Unit: TypeAlias = StoreKey | list[int]
"""The name of a unit in a message: a key, or the number of a list of keys inside a list of its own."""

ALIGNMENT = 32
"""Elements. Each key of a list starts at a multiple of it, so no word of MXNet's codes has elements of two keys."""

MAX_LISTS = 256
"""The most lists of keys that a worker may declare."""

MAX_BACKOFF = 1024
"""The most uses for which the keys of a list stay separate after they were separated repeatedly."""

Item = TypeVar("Item")


class UnitBatches(Generic[Item]):
    """A context that distributes the units of one call over messages to each server.

    On exit it sends what is left, also after an exception: what was encoded before it has to be pushed.

    Args:
        send: called with a server and the units of one message.

    Example:
        >>> with UnitBatches(lambda server, items: print(server, items)) as batches:
        ...     batches.add(0, 8, "a", small=True)
        ...     batches.add(0, 2**20, "large", small=False)
        ...     batches.add(0, 8, "b", small=True)
        0 ['large']
        0 ['a', 'b']
    """

    def __init__(self, send: Callable[[int, list[Item]], None]) -> None:
        self._send = send
        self._open: dict[int, tuple[list[Item], int]] = {}

    def add(self, server: int, nbytes: int, item: Item, *, small: bool) -> None:
        """Add a unit. A large one is sent at once, alone; a small one is sent when its message is full, or on exit.

        Args:
            server: index of the unit's server.
            nbytes: number of the unit's bytes, >= 0.
            item: the unit, as ``send`` expects it.
            small: true if the unit shares a message with others.
        """
        if not small:
            self._send(server, [item])
            return
        items, filled = self._open.get(server, ([], 0))
        if items and (len(items) == MAX_ITEMS or filled + align(nbytes) > MAX_BATCH):
            self._send(server, items)
            items, filled = [], 0
        items.append(item)
        self._open[server] = items, filled + align(nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Whatever was raised: these were encoded, so their residuals count on being pushed.
        for server, (items, _) in self._open.items():
            self._send(server, items)


def offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Compute where the bytes of each unit start in a message, at multiples of 8, and how many bytes there are in all.

    >>> offsets([3, 16, 5])
    ([0, 8, 24], 29)
    """
    starts, end = [], 0
    for size in sizes:
        starts.append(align(end))
        end = starts[-1] + size
    return starts, end


def packed(pieces: Sequence[Tensor]) -> Tensor:
    """Copy the bytes of units to their offsets in new memory: uint8."""
    starts, nbytes = offsets([piece.numel() for piece in pieces])
    out, end = lease((nbytes,), torch.uint8), 0
    for start, piece in zip(starts, pieces, strict=True):
        # What was in this memory before must not leave the process.
        if start > end:
            out[end:start] = 0
        end = start + piece.numel()
        out[start:end].copy_(piece)
    return out


def unpacked(data: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Split the bytes of a message into those of each unit, without a copy."""
    if len(sizes) == 1:
        return [data]
    return [data[start : start + size] for start, size in zip(offsets(sizes)[0], sizes, strict=True)]


def is_small(key: StoreKey, nbytes: int) -> bool:
    """Return whether a key's value is small enough to share a message, and its name is short enough."""
    return nbytes <= SMALL and (isinstance(key, int) or len(key.encode()) <= MAX_NAME)


def element_offsets(numels: Sequence[int]) -> tuple[list[int], int]:
    """Compute where each key of a list starts, in elements, and the number of elements of the whole list.

    >>> element_offsets([3, 40, 1])
    ([0, 32, 96], 128)
    """
    starts, end = [], 0
    for numel in numels:
        starts.append(end)
        end += align(numel, ALIGNMENT)
    return starts, end


def joinable(compression: Compression) -> bool:
    """Return whether the payload of joined tensors consists of the payloads of each, one after the other."""
    code, memory = compression.push, compression.memory
    if compression.pull is not None:
        return False
    if code is None:
        return True
    alone = code.elementwise and not code.random and code.fixed_size and code.alignment > 0
    plain = memory is not None and facts.plain(memory) and sums(code, memory)
    return alone and plain and ALIGNMENT % code.alignment == 0 and len(layout_of(code, (ALIGNMENT,)).fields) == 1


def quoted(keys: Sequence[StoreKey]) -> str:
    """Quote the first five of several keys, for a message to the user.

    >>> quoted(["a", "b"]), quoted(range(100))
    ("'a', 'b'", '0, 1, 2, 3, 4 and 95 more')
    """
    more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
    return ", ".join(map(repr, keys[:5])) + more


@dataclass
class Backoff:
    """An exponential backoff: the number of uses for which the keys of a list stay separate doubles each time."""

    length: int = 0
    left: int = 0

    def start(self) -> None:
        """Start a longer wait, because the keys had to be separated again."""
        self.length = self.left = min(MAX_BACKOFF, 2 * self.length + 1)

    def expired(self) -> bool:
        """Count one use, and return whether the keys may be joined again."""
        self.left = max(0, self.left - 1)
        return not self.left
