"""Lists of small keys on a server: the keys of a list are one unit, as a single key is.

While they are joined, all that a server does for a key in a step is done once for the list: one push is one piece of
memory, one sum and one answer.

Invariants:
    * Keys can be joined if all of them are at the same step. A request for one of them alone separates them, with the
      values, the steps and the waiting pushes that they would have had alone. Later they are joined again.
    * The answers do not depend on whether keys are joined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.errors import WireError
from gradwire.kvstore.protocol.buffers import as_bytes, lease
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.payloads import layout_of
from gradwire.kvstore.protocol.small_keys import Backoff, element_offsets, joinable, quoted
from gradwire.kvstore.protocol.updater import Updater
from gradwire.kvstore.server.stored_part import Contribution, StoredPart

__all__ = ["KeyList"]


class KeyList(StoredPart):
    """A list of keys that workers name together, as one part; while they are joined, its value is theirs end to end.

    Args:
        number: number of the list on this server, under which requests wait for it.
        members: parts of the keys, of one dtype.

    Attributes:
        are_joined: true if the value, the steps and the waiting pushes are kept here, and not by each member.
    """

    def __init__(self, number: int, members: Sequence[StoredPart]) -> None:
        self.members = list(members)
        self.starts, numel = element_offsets([each.value.numel() for each in members])
        self.backoff = Backoff()
        self.are_joined = False
        self._shapes = [each.value.shape for each in members]
        keys = [each.key for each in members]
        value = placeholder(torch.Size((numel,)), members[0].value.dtype)
        super().__init__(f"keys {quoted(keys)}", value, 0, numel, sparse=False)
        self.topic, self.keys, self.count = ("list", number), keys, len(keys)

    @property
    def title(self) -> str:
        return str(self.key)

    def units(self) -> Sequence[StoredPart]:
        """List the units that have steps of their own: the list while its keys are joined, else each key."""
        return [self] if self.are_joined else self.members

    def expected(self, compression: Compression, rows: int = -1) -> range:
        """Compute the allowed numbers of bytes for a push of all keys, which is dense.

        Raises:
            WireError: a row-sparse push, or a compression whose payload of all keys is not the payloads of each, one
                after the other.
        """
        floats = compression.push is None or self.value.dtype.is_floating_point
        if not (floats and joinable(compression)):
            raise WireError(f"{self.title} cannot be pushed together with this compression")
        if rows >= 0:
            raise WireError(f"{self.title} cannot be pushed together as rows")
        return super().expected(compression)

    def data(self) -> Tensor:
        """Return the bytes of all values end to end."""
        return super().data() if self.are_joined else as_bytes(self._gathered())

    def takers(self, push: Contribution) -> list[tuple[StoredPart, Contribution]]:
        """List the parts that take a push of all keys: the list, or each key with its own piece of the push."""
        return [(self, push)] if self.are_joined else list(zip(self.members, self._cut(push), strict=True))

    def are_alike(self) -> bool:
        """Return whether the keys can be joined: all are at the same step, and nothing waits."""
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
        """Join members that are alike: their state is kept here from now on."""
        first = self.members[0]
        self.value, self.lent, self.pending = self._gathered(), False, {}
        self.version, self.last, self.replaced = first.version, dict(first.last), first.replaced
        self.durable, self.durable_of = first.durable, dict(first.durable_of)
        for each in self.members:
            # A value without memory: a request for the key alone separates the keys first.
            each.value = placeholder(each.value.shape, each.value.dtype)
        self.are_joined = True

    def separate(self) -> None:
        """Separate the keys: each has the state that it would have had alone."""
        self.are_joined = False
        for each, value in zip(self.members, self._pieces(self.value), strict=True):
            each.value, each.version, each.last = value, self.version, dict(self.last)
            each.durable, each.durable_of = self.durable, dict(self.durable_of)
            each.replaced, each.lent, each.failed = self.replaced, self.lent, self.failed
        # Pushes that still wait for other workers' are cut, too: each key's next push may come alone.
        for step, pushes in self.pending.items():
            for rank, push in pushes.items():
                for each, mine in zip(self.members, self._cut(push), strict=True):
                    each.pending.setdefault(step, {})[rank] = mine
        self.value, self.pending = placeholder(self.value.shape, self.value.dtype), {}

    def _update_by(self, updater: Updater, merged: Tensor, rows: Tensor | None) -> None:
        for member, grad, value in zip(self.members, self._pieces(merged), self._pieces(self.value), strict=True):
            updater(member.key, grad, value)

    def _pieces(self, flat: Tensor) -> list[Tensor]:
        """Split a joined tensor into the elements of each key, in its shape."""
        return [
            flat[start : start + shape.numel()].view(shape)
            for start, shape in zip(self.starts, self._shapes, strict=True)
        ]

    def _gathered(self) -> Tensor:
        """Join the values of the members end to end in new memory, with zeros between them."""
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


def placeholder(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Make a placeholder for a value that is kept elsewhere: one element, expanded to the shape."""
    return torch.zeros((), dtype=dtype, device="cpu").expand(shape)
