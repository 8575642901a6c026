"""Small keys that workers push and pull together: a list of keys is a unit as a key is.

What a server does for a key in a step, it does once for a whole list: one push is one piece of memory, one sum, one
answer. That holds as long as all keys of the list are at the same step and nobody names one of them alone; then they
are put apart, each with its value, its steps and the pushes that wait, as if they had always been alone, and put
together again later. So neither way can be told from the other by what comes out of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.errors import WireError
from gradwire.kvstore.protocol.buffers import lease
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.payloads import layout_of
from gradwire.kvstore.protocol.small_keys import Patience, joinable, named, side_by_side
from gradwire.kvstore.protocol.updater import Updater
from gradwire.kvstore.server.pending import Topic
from gradwire.kvstore.server.stored_part import Contribution, StoredPart, raw

__all__ = ["KeyList"]


class KeyList(StoredPart):
    """Keys that workers name together, as one part: while they are joined, its value is theirs end to end.

    Args:
        number: of the server's own, by which requests wait for the list.
        members: the parts of the keys, which have one dtype.

    Attributes:
        together: whether the value, the steps and what waits are kept here for all members, or by each of them.
    """

    def __init__(self, number: int, members: Sequence[StoredPart]) -> None:
        self.number, self.members = number, list(members)
        self.starts, numel = side_by_side([each.value.numel() for each in members])
        self.patience = Patience()
        self.together = False
        self._shapes = [each.value.shape for each in members]
        title = f"keys {named([each.key for each in members])}"
        super().__init__(title, unheld(torch.Size((numel,)), members[0].value.dtype), 0, numel, sparse=False)

    @property
    def topic(self) -> Topic:
        return "list", self.number

    @property
    def title(self) -> str:
        return str(self.key)

    @property
    def keys(self) -> Sequence[StoreKey]:
        return [each.key for each in self.members]

    @property
    def count(self) -> int:
        return len(self.members)

    def units(self) -> Sequence[StoredPart]:
        """List the units that have steps of their own: the list while its keys are joined, else each key."""
        return [self] if self.together else self.members

    def expected(self, compression: Compression) -> range:
        """The allowed numbers of bytes for a push of all keys.

        Raises:
            WireError: the payload of all keys is not those of each, one after the other.
        """
        floats = compression.push is None or self.value.dtype.is_floating_point
        if not (floats and joinable(compression)):
            raise WireError(f"{self.title} cannot be pushed together with this compression")
        return super().expected(compression)

    def lend(self) -> Tensor:
        """Lend the bytes of all values end to end, which do not change."""
        return super().lend() if self.together else raw(self._gathered())

    def takers(self, push: Contribution) -> list[tuple[StoredPart, Contribution]]:
        """List the parts that take a push of all keys: the list as one, or each key for its own stretch of it."""
        return [(self, push)] if self.together else list(zip(self.members, self._cut(push), strict=True))

    def alike(self) -> bool:
        """Return whether all members are at the same step, and nothing waits."""
        first = self.members[0]
        return all(
            not each.pending
            and not each.replicas
            and each.version == first.version
            and each.last == first.last
            and each.durable == first.durable
            and each.durable_of == first.durable_of
            and each.replaced == first.replaced
            for each in self.members
        )

    def join(self) -> None:
        """Take over the state of members that are alike."""
        first = self.members[0]
        self.value, self.lent, self.pending = self._gathered(), False, {}
        self.version, self.last, self.replaced = first.version, dict(first.last), first.replaced
        self.durable, self.durable_of = first.durable, dict(first.durable_of)
        for each in self.members:
            # Its form without its memory: whoever wants the value has them put apart first.
            each.value = unheld(each.value.shape, each.value.dtype)
        self.together = True

    def part(self) -> None:
        """Separate the keys: each gets the state that it would have if it had always been alone."""
        self.together = False
        for each, value in zip(self.members, self._pieces(self.value), strict=True):
            each.value, each.version, each.last = value, self.version, dict(self.last)
            each.durable, each.durable_of = self.durable, dict(self.durable_of)
            each.replaced, each.lent = self.replaced, self.lent
        for step, pushes in self.pending.items():
            for rank, push in pushes.items():
                for each, mine in zip(self.members, self._cut(push), strict=True):
                    each.pending.setdefault(step, {})[rank] = mine
        self.value, self.pending = unheld(self.value.shape, self.value.dtype), {}

    def _update_by(self, updater: Updater, merged: Tensor, rows: Tensor | None) -> None:
        for member, grad, value in zip(self.members, self._pieces(merged), self._pieces(self.value), strict=True):
            updater(member.key, grad, value)

    def _pieces(self, flat: Tensor) -> list[Tensor]:
        """Split a tensor that is joined from all keys into each key's stretch, in its shape."""
        return [
            flat[start : start + shape.numel()].view(shape)
            for start, shape in zip(self.starts, self._shapes, strict=True)
        ]

    def _gathered(self) -> Tensor:
        """Join the members' values end to end, in new memory."""
        flat = lease(self.value.shape, self.value.dtype).zero_()
        for piece, member in zip(self._pieces(flat), self.members, strict=True):
            piece.copy_(member.value)
        return flat

    def _cut(self, push: Contribution) -> list[Contribution]:
        """Split a push of all keys into a push of each."""
        code = push.compression.push

        def nbytes(numel: int) -> int:
            return numel * self.value.itemsize if code is None else layout_of(code, (numel,)).nbytes

        return [
            dataclasses.replace(push, data=push.data[nbytes(start) :][: nbytes(shape.numel())])
            for start, shape in zip(self.starts, self._shapes, strict=True)
        ]


def unheld(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A placeholder for a value that is kept elsewhere: one element, expanded to its shape."""
    return torch.zeros((), dtype=dtype).expand(shape)
