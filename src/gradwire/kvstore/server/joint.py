"""Small keys that workers push and pull together, side by side in one entry.

What a server does for a key in a step, it does once for all of them: one push is one piece of memory, one sum, one
answer. That holds as long as all of them are at the same step and nobody names one of them alone; then they are put
apart, each with its value, its steps and the pushes that wait, as if they had always been alone, and put together
again later. So neither way can be told from the other by what comes out of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire.errors import WireError
from gradwire.kvstore.protocol.buffers import lease
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.optimizers import Updater
from gradwire.kvstore.protocol.payloads import layout_of, received, sizes
from gradwire.kvstore.protocol.small_keys import Patience, joinable, named, side_by_side
from gradwire.kvstore.server.parts import Contribution, StoredPart, raw

__all__ = ["JoinedParts", "Joint"]


@dataclass
class JoinedParts(StoredPart):
    """Several keys' parts as one: the value has theirs side by side.

    Args:
        joint: whose.
    """

    joint: Joint = field(kw_only=True)

    @property
    def topic(self) -> tuple[str, int]:
        return self.joint.topic

    @property
    def title(self) -> str:
        return self.joint.title

    @property
    def count(self) -> int:
        return len(self.joint.members)

    def _update_by(self, updater: Updater, merged: Tensor, rows: Tensor | None) -> None:
        for member, grad, value in zip(
            self.joint.members, self.joint.pieces(merged), self.joint.pieces(self.value), strict=True
        ):
            updater(member.key, grad, value)


class Joint:
    """Keys that a worker named together.

    Args:
        number: of the server's own.
        members: of the keys, which have one dtype.
    """

    def __init__(self, number: int, members: Sequence[StoredPart]) -> None:
        self.topic = ("joint", number)
        self.members = list(members)
        self.title = f"keys {named([each.key for each in members])}"
        self.dtype = members[0].value.dtype
        self.starts, self.numel = side_by_side([each.value.numel() for each in members])
        self.patience = Patience()
        self.entry: JoinedParts | None = None
        self._shapes = [each.value.shape for each in members]

    @property
    def keys(self) -> Sequence[StoreKey]:
        """The keys of the list."""
        return [each.key for each in self.members]

    @property
    def count(self) -> int:
        """How many keys are in it."""
        return len(self.members)

    @property
    def nbytes(self) -> int:
        """The bytes of the values side by side."""
        return self.numel * self.dtype.itemsize

    def expected(self, compression: Compression) -> range:
        """How many bytes a push of all keys may have.

        Raises:
            WireError: such payloads cannot be side by side.
        """
        code = self.checked(compression).push
        return range(self.nbytes, self.nbytes + 1) if code is None else sizes(code, (self.numel,))

    def contribution(self, compression: Compression, data: Tensor, rows: int, optimizer: int) -> Contribution:
        """What a push of all keys means; it is dense.

        Raises:
            WireError: a payload that cannot be decoded safely.
        """
        assert rows < 0
        code = compression.push
        return Contribution(data if code is None else received(code, (self.numel,), data), compression, optimizer)

    def lend(self) -> Tensor:
        """The bytes of all values side by side, which stay as they are."""
        return raw(self.values()) if self.entry is None else self.entry.lend()

    def units(self) -> Sequence[StoredPart]:
        """What has steps: all of them as one, or each."""
        return self.members if self.entry is None else [self.entry]

    def pieces(self, flat: Tensor) -> list[Tensor]:
        """Each key's, of what is side by side."""
        return [
            flat[start : start + shape.numel()].view(shape)
            for start, shape in zip(self.starts, self._shapes, strict=True)
        ]

    def values(self) -> Tensor:
        """The members' values side by side, in memory of its own."""
        flat = lease((self.numel,), self.dtype).zero_()
        for piece, member in zip(self.pieces(flat), self.members, strict=True):
            piece.copy_(member.value)
        return flat

    def cut(self, push: Contribution) -> list[Contribution]:
        """Each key's part of a push of all of them."""
        code = push.compression.push

        def nbytes(numel: int) -> int:
            return numel * self.dtype.itemsize if code is None else layout_of(code, (numel,)).nbytes

        return [
            dataclasses.replace(push, data=push.data[nbytes(start) :][: nbytes(shape.numel())])
            for start, shape in zip(self.starts, self._shapes, strict=True)
        ]

    def alike(self) -> bool:
        """Whether all members are at the same point, with nothing that waits."""
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
        """Bring members together that are alike."""
        first = self.members[0]
        self.entry = JoinedParts(
            self.title,
            self.values(),
            0,
            self.numel,
            sparse=False,
            version=first.version,
            durable=first.durable,
            durable_of=dict(first.durable_of),
            last=dict(first.last),
            replaced=first.replaced,
            joint=self,
        )
        for each in self.members:
            # Its form without its memory: whoever wants the value has them put apart first.
            each.value = torch.zeros((), dtype=self.dtype).expand(each.value.shape)

    def part(self) -> None:
        """Give each member what it would have if it had always been alone."""
        together, self.entry = self.entry, None
        assert together is not None
        for each, value in zip(self.members, self.pieces(together.value), strict=True):
            each.value, each.version, each.last = value, together.version, dict(together.last)
            each.durable, each.durable_of = together.durable, dict(together.durable_of)
            each.replaced, each.lent = together.replaced, together.lent
        for step, pushes in together.pending.items():
            for rank, push in pushes.items():
                for each, mine in zip(self.members, self.cut(push), strict=True):
                    each.pending.setdefault(step, {})[rank] = mine

    def checked(self, compression: Compression) -> Compression:
        """A compression that payloads of all of them may have.

        Raises:
            WireError: it does not make such payloads.
        """
        if not joinable(compression) or (compression.push is not None and not self.dtype.is_floating_point):
            raise WireError(f"{self.title} cannot be pushed together with this compression")
        return compression
