"""Small keys that travel together: which keys do, and how their bytes lie in one message.

A key of its own message costs both sides as much work as a hundred kilobytes of a large one. So the small keys of one
push, or one pull, go in one message; and a list of keys that workers name again and again is known by a number, and its
tensors lie side by side as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradwire.kvstore.protocol.buffers import lease
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.merge import sums
from gradwire.kvstore.protocol.messages import CHUNK, MAX_ITEMS
from gradwire.kvstore.protocol.payloads import layout_of
from gradwire.types import align

__all__ = [
    "MAX_LISTS",
    "ROOM",
    "SMALL",
    "UNIT",
    "Bundle",
    "Bundles",
    "Patience",
    "Unit",
    "bundled",
    "joinable",
    "named",
    "side_by_side",
]

SMALL = CHUNK // 8
"""Bytes of a key's value up to which it travels with others."""

LONGEST = 100
"""Bytes of the name of such a key: all names must fit into one header."""

ROOM = 4 * CHUNK
"""Bytes of a message that names many keys, at most."""

Unit: TypeAlias = StoreKey | list[int]
"""What a push or a pull names: a key, or the number of a list of keys, in a list of its own."""

UNIT = 32
"""Elements at whose multiples keys start: no word of MXNet's codes has elements of two keys."""

MAX_LISTS = 256
"""Lists of keys that a worker may name."""

MOST_USES = 1024
"""Uses that keys stay apart at most, after they had to be put apart again and again."""


@dataclass
class Bundle:
    """Units that travel to one server in one message: small keys, and lists of them by their numbers.

    Args:
        room: bytes that it takes at most.
    """

    room: int = ROOM
    items: list[list[Any]] = field(default_factory=list)
    places: list[tuple[int, Tensor]] = field(default_factory=list)
    """The place at which the bytes of each unit start, and the bytes."""
    nbytes: int = 0
    kept: bool = True
    """Whether the bytes are somebody else's, who goes on using them."""

    @classmethod
    def of(cls, unit: Unit, step: int, data: Tensor) -> Bundle:
        """Make a bundle of one unit, which takes over its bytes."""
        bundle = cls(kept=False)
        bundle.add(unit, step, data)
        return bundle

    def fits(self, nbytes: int) -> bool:
        return len(self.items) < MAX_ITEMS and (not self.items or self.nbytes + align(nbytes) <= self.room)

    def add(self, unit: Unit, step: int, piece: Tensor) -> None:
        """Add a unit with its bytes: uint8, which must not change until ``data`` is called."""
        self.items.append([unit, step, piece.numel()])
        self.places.append((self.nbytes, piece))
        self.nbytes += align(piece.numel())

    def data(self) -> Tensor:
        """Return all bytes, each unit's at a multiple of 8."""
        if not self.kept and len(self.places) == 1 and self.places[0][1].numel() == self.nbytes:
            return self.places[0][1]
        out = lease((self.nbytes,), torch.uint8)
        for start, piece in self.places:
            end = start + piece.numel()
            out[start:end].copy_(piece)
            # What was in this memory before is nobody's business at the other end.
            if end % 8:
                out[end : align(end)] = 0
        return out


class Bundles:
    """The bundles of one call to all servers: each is sent when it is full, or when every key was added.

    Args:
        send: called with a server and a bundle.
    """

    def __init__(self, send: Callable[[int, Bundle], None]) -> None:
        self._send = send
        self._open: dict[int, Bundle] = {}

    def add(self, server: int, unit: Unit, step: int, piece: Tensor) -> None:
        """Add a unit to the bundle of its server."""
        bundle = self._open.setdefault(server, Bundle())
        if not bundle.fits(piece.numel()):
            self._send(server, bundle)
            bundle = self._open[server] = Bundle()
        bundle.add(unit, step, piece)

    def close(self) -> None:
        """Send the bundles that are left."""
        for server, bundle in self._open.items():
            self._send(server, bundle)
        self._open = {}


def bundled(key: StoreKey, nbytes: int) -> bool:
    """Return whether a key's value is small enough to travel with others, and its name short enough."""
    return nbytes <= SMALL and (isinstance(key, int) or len(key.encode()) <= LONGEST)


def side_by_side(numels: Sequence[int]) -> tuple[list[int], int]:
    """The offset of each of several tensors laid end to end, and the number of elements of all.

    >>> side_by_side([3, 40, 1])
    ([0, 32, 96], 128)
    """
    starts, end = [], 0
    for numel in numels:
        starts.append(end)
        end += align(numel, UNIT)
    return starts, end


def joinable(compression: Compression) -> bool:
    """Return whether the payload of several tensors laid end to end is that of each, one after the other."""
    code, memory = compression.push, compression.memory
    if compression.pull is not None:
        return False
    if code is None:
        return True
    alone = code.elementwise and not code.random and code.fixed_size and code.alignment > 0
    plain = memory is not None and memory.plain and sums(code, memory)
    return alone and plain and UNIT % code.alignment == 0 and len(layout_of(code, (UNIT,)).fields) == 1


def named(keys: Sequence[StoreKey]) -> str:
    """Describe keys in words.

    >>> named(["a", "b"]), named(range(100))
    ("'a', 'b'", '0, 1, 2, 3, 4 and 95 more')
    """
    more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
    return ", ".join(map(repr, keys[:5])) + more


@dataclass
class Patience:
    """A back-off that doubles how long keys stay separate each time."""

    uses: int = 0
    left: int = 0

    def lose(self) -> None:
        """Note that the keys had to be separated again."""
        self.uses = self.left = min(MOST_USES, 2 * self.uses + 1)

    def over(self) -> bool:
        """Return whether to join them again; to be asked once for each use."""
        self.left = max(0, self.left - 1)
        return not self.left
