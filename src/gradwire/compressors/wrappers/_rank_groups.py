"""Groups of ranks whose payloads are decoded together, before they are added to a sum in one pass."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["groups"]

ROOM = 24 << 20
"""Bytes. Above 32 MiB the GNU allocator gets every block from the system and gives it back, and pages that are new take
longer to come than to be filled."""


def groups(ranks: int, nbytes: int) -> Iterator[range]:
    """Divide the ranks in order into groups for which ``nbytes`` each fit into a buffer, with one rank at least.

    >>> list(groups(5, 12 << 20))
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    size = max(1, ROOM // max(1, nbytes))
    for first in range(0, ranks, size):
        yield range(first, min(first + size, ranks))
