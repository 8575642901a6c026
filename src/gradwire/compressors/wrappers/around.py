"""Parts that methods around another one share: its declared properties, and groups of ranks decoded together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.vocabulary import Key, State

__all__ = ["Wrapper", "declare_as", "groups"]

ROOM = 24 << 20
"""Bytes. Above 32 MiB the GNU allocator gets every block from the system and gives it back, and pages that are new take
longer to come than to be filled."""


class Wrapper(Compressor):
    """Base of the methods that change how another one travels, and not what it does to a gradient."""

    inner: Compressor

    def delta(self, n: int) -> float:
        return capabilities.delta(self.inner, n)

    def omega(self, n: int) -> float:
        return capabilities.omega(self.inner, n)

    @property
    def alignment(self) -> int:
        return self.inner.alignment

    def init_state(self, shape: Sequence[int], key: Key, device: torch.device | None = None) -> State:
        return self.inner.init_state(shape, key, device)


def groups(ranks: int, nbytes: int) -> Iterator[range]:
    """Divide the ranks in order into groups for which ``nbytes`` each fit into a buffer, with one rank at least.

    >>> list(groups(5, 12 << 20))
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    size = max(1, ROOM // max(1, nbytes))
    for first in range(0, ranks, size):
        yield range(first, min(first + size, ranks))


def declare_as(inner: Compressor, code: Compressor, *names: str) -> None:
    """Set the declared properties of ``code``, a frozen instance that is being made, to those of ``inner``.

    Args:
        inner: the method inside.
        code: around it.
        names: names of facts that every class declares, or of functions in ``capabilities``.
    """
    for name in names:
        asked = getattr(capabilities, name, None)
        object.__setattr__(code, name, getattr(inner, name) if asked is None else asked(inner))
