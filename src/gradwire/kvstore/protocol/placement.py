"""Which servers keep which part of a key.

A key of ``bound`` elements or more is cut over all servers, at MXNet's boundaries: where it is compressed, at whole
words of codes, so that a part's payload is the same bytes as that stretch of the whole. A smaller key lives on one
server, chosen by a hash of its name that every worker computes alike, whatever the order in which it named its keys.

The cut depends on the key's size, the number of servers and the compressor's alignment, which are known before the
first push; a push and a pull always agree, because both ask here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from gradwire.errors import is_int, require
from gradwire.kvstore.protocol.keys import StoreKey

__all__ = ["BIGARRAY_BOUND", "KeyPart", "place"]

BIGARRAY_BOUND = 1_000_000
"""Elements from which on a key is cut; MXNet's default."""


@dataclass(frozen=True)
class KeyPart:
    """Elements [start, stop) of a key, on one server."""

    server: int
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


def place(key: StoreKey, numel: int, servers: int, *, bound: int = BIGARRAY_BOUND, alignment: int = 1) -> list[KeyPart]:
    """The parts of a key, in order; together they are all of it.

    Args:
        key: its name.
        numel: elements, >= 0.
        servers: how many there are, >= 1.
        bound: elements from which on the key is cut, >= 1.
        alignment: parts start at multiples of so many elements: 16 for a 2-bit code, 32 for a 1-bit code, 1 for
            float32; 0: the key cannot be cut.

    Raises:
        ConfigError: a number is outside its range.

    Example:
        >>> [part.numel for part in place("w", 1_000_001, 2, alignment=16)]
        [500016, 499985]
        >>> len(place("b", 1000, 2))
        1
    """
    require(is_int(servers, 1), "servers", "an integer >= 1", servers)
    require(is_int(bound, 1), "bound", "an integer >= 1", bound)
    if numel < bound or alignment == 0:
        return [KeyPart(home(key, servers), 0, numel)]
    words = -(-numel // alignment)
    edges = [min(numel, alignment * rounded(words * i, servers)) for i in range(servers + 1)]
    parts = [KeyPart(server, edges[server], edges[server + 1]) for server in range(servers)]
    return [part for part in parts if part.numel]


def home(key: StoreKey, servers: int) -> int:
    """The server of a small key: by a hash of its name, so keys spread evenly whatever their pattern."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % servers


def rounded(a: int, b: int) -> int:
    """A / b rounded to the nearest integer, halves up: C's ``round`` for what is positive, without its overflow."""
    return (2 * a + b) // (2 * b)
