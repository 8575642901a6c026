"""A part of a key on its server: its value, and the pushes of each step that have arrived.

Invariants:
    * In ``sync`` a step is applied once, when every live worker's push for it is there, in the order of ranks. So the
      result does not depend on which worker was faster.
    * A push that comes again changes nothing: one for a step that was applied, or that has this worker's push already.
    * The number of waiting pushes is bounded: a worker that waits for its pulls has one push of a key here, and none
      may have more than ``AHEAD``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.buffers import as_bytes, lease
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.merge import Merger, merged_rows
from gradwire.kvstore.protocol.payloads import received, sizes
from gradwire.kvstore.protocol.replica import Replica, follows, whole
from gradwire.kvstore.protocol.updater import Updater
from gradwire.kvstore.server.pending import Topic

__all__ = ["AHEAD", "Contribution", "StoredPart"]

AHEAD = 256
"""Steps of which a server keeps pushes before all workers' are in."""

SHARED = -1
"""The place in ``StoredPart.replicas`` of what all workers share."""


@dataclass
class Contribution:
    """One worker's push: its bytes and how to decode them.

    Args:
        data: uint8; a payload, or the elements themselves.
        compression: compression that made the payload; its ``push`` is None where the elements are sent as they are.
        optimizer: number of the optimizer's setting that the worker had when it pushed.
        rows: int64, of a row-sparse push; else None.
    """

    data: Tensor
    compression: Compression
    optimizer: int = 0
    rows: Tensor | None = None


@dataclass(eq=False)
class StoredPart:
    """The stored part of a key: its value, its pending pushes, and its replica.

    Args:
        key: key of the store.
        value: value of the part, in its shape.
        start: first element in the whole key.
        total: elements of the whole key.
        sparse: the value was initialised as a row-sparse one.
        version: steps applied.

    Attributes:
        topic: topic under which requests wait for this part.
        keys: keys in the part.
        count: number of these keys.
        nbytes: bytes of the value.
    """

    key: StoreKey
    value: Tensor
    start: int
    total: int
    sparse: bool
    version: int = 0
    durable: int = 0
    durable_of: dict[int, int] = field(default_factory=dict)
    """``last`` of what is on the disk; async workers count their own steps."""
    pending: dict[int, dict[int, Contribution]] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    """The last step of each worker that is in the value."""
    lent: bool = False
    """True: an answer may still read the value's memory, so it is not written any more."""
    replicas: dict[int, Replica] = field(default_factory=dict)
    """Replicas where answers are compressed: in sync one for all workers, ``SHARED``; in async each worker's own."""
    failed: str = ""
    """The reason for which a step, whose pushes are lost, could not be applied; the key takes no further step."""
    replaced: bool = True
    """True: the newest step replaced the value; false: it updated it."""

    def __post_init__(self) -> None:
        self.topic: Topic = self.key
        self.keys: Sequence[StoreKey] = [self.key]
        self.count, self.nbytes = 1, self.value.nbytes
        self.merger = Merger(self.value.shape)
        self._expected: tuple[Compression | None, range] = (None, range(0))

    @property
    def title(self) -> str:
        """The name of the unit in words."""
        return f"key {self.key!r}"

    def units(self) -> Sequence[StoredPart]:
        """List the units that have steps of their own: the part itself."""
        return [self]

    def takers(self, push: Contribution) -> list[tuple[StoredPart, Contribution]]:
        """List the parts that take a push of this unit: the part itself."""
        return [(self, push)]

    def expected(self, compression: Compression, rows: int = -1) -> range:
        """Compute the allowed numbers of bytes for a push: exactly those of its layout, fewer only if its size varies.

        Args:
            rows: number of rows of a row-sparse push; -1 of a dense one.

        Raises:
            WireError: more rows than the value has.
        """
        if rows >= 0:
            if rows > (len(self.value) if self.value.dim() else -1):
                raise WireError(f"a push names {rows} rows of {self.title}")
            found = payload_sizes(compression, (rows, *self.value.shape[1:]), self.value.itemsize)
            return range(found.start + 8 * rows, found.stop + 8 * rows)
        # The compression is the same object until it changes.
        if self._expected[0] is not compression:
            self._expected = compression, payload_sizes(compression, tuple(self.value.shape), self.value.itemsize)
        return self._expected[1]

    def check_same(self, shape: torch.Size, dtype: torch.dtype, start: int, total: int) -> None:
        """Refuse a worker that has this key with another shape or dtype.

        Raises:
            ConfigError: the shape or the dtype is another one.
        """
        ours = (self.value.shape, self.value.dtype, self.start, self.total)
        if ours != (shape, dtype, start, total):
            raise ConfigError(
                f"{self.title} is {self.value.dtype} of shape {tuple(self.value.shape)} at {self.start} of "
                f"{self.total} elements, another worker has {dtype} of shape {tuple(shape)} at {start} of {total}"
            )

    def contribution(self, compression: Compression, data: Tensor, rows: int, optimizer: int) -> Contribution:
        """Make a contribution from a push, checked before anything is decoded.

        Args:
            data: uint8, of a size that ``expected`` allows, after the rows of a row-sparse push.
            rows: number of rows; -1 for a dense push.

        Raises:
            WireError: a row that does not exist, or a payload that cannot be decoded safely.
        """
        shape, indices = tuple(self.value.shape), None
        if rows >= 0:
            indices, data = data[: 8 * rows].view(torch.int64), data[8 * rows :].clone()
            if rows and not (int(indices.min()) >= 0 and int(indices.max()) < shape[0]):
                raise WireError(f"a push names a row outside of {self.title}")
            shape = (rows, *shape[1:])
        if compression.push is not None:
            data = received(compression.push, shape, data)
        return Contribution(data, compression, optimizer, indices)

    def is_new(self, rank: int, step: int, contribution: Contribution) -> bool:
        """Return whether a push has not come before; nothing changes.

        Raises:
            ConfigError: the step was made without the worker; or it is ``AHEAD`` steps further than the key: it pushes
                and never pulls; or it wants its answers compressed in another way than the others do.
        """
        if self.last.get(rank, 0) < step <= self.version:
            raise ConfigError(
                f"step {step} of {self.title} was made without worker {rank}, and step {self.version} is made: it "
                "had been silent for too long, or had finished; start it again"
            )
        if step <= self.version or rank in self.pending.get(step, {}):
            return False
        if step > self.version + AHEAD:
            raise ConfigError(
                f"{self.title} is at step {self.version}, a push is for step {step}: pull, or wait at a barrier, "
                f"before a worker is {AHEAD} steps ahead of the slowest"
            )
        for other, push in self.pending.get(step, {}).items():
            if push.compression.pull != contribution.compression.pull:
                raise ConfigError(
                    f"{self.title}, step {step}: worker {rank} asks for answers compressed by "
                    f"{contribution.compression.pull}, worker {other} by {push.compression.pull}; 'pull' of "
                    "set_gradient_compression must be the same on all workers"
                )
        return True

    def ready(self, live: Collection[int]) -> dict[int, Contribution] | None:
        """The pushes of the next step by rank, taken out, if those of all live workers are there."""
        pushes = self.pending.get(self.version + 1)
        if pushes is None or not set(live) <= pushes.keys():
            return None
        return self.pending.pop(self.version + 1)

    def apply(self, pushes: Mapping[int, Contribution], updaters: Mapping[int, Updater]) -> None:
        """Make the next version of the value, and of the replica."""
        # Floating-point sums depend on their order, and runs must not depend on which push came first.
        ordered = [pushes[rank] for rank in sorted(pushes)]
        self.last |= dict.fromkeys(pushes, self.version + 1)
        pull = ordered[0].compression.pull
        if pull is None or not follows(pull, self.value.shape, self.value.dtype):
            # Workers get whole values from now on, and would not have what a later change is added to.
            self.replicas.pop(SHARED, None)
            self._update(ordered, updaters)
            return
        # Before the value changes: those who pulled it uncompressed hold just this.
        if SHARED not in self.replicas:
            self.replicas[SHARED] = Replica(self.key, self.value, self.version)
        self._update(ordered, updaters)
        self.replicas[SHARED].follow(self.value, pull, replaced=self.replaced)

    def answer(self, rank: int, have: int, compressor: Compressor | None, *, shared: bool) -> tuple[Tensor, int]:
        """Make the answer for a worker that pulls compressed and holds replica ``have`` (-1: none), and return it with
        the number of the replica that it then holds. ``shared`` says that all workers hold the same value.
        """
        compressed = compressor is not None and follows(compressor, self.value.shape, self.value.dtype)
        if not compressed or (shared and SHARED not in self.replicas):
            return whole(self.value, self.version), self.version
        replica = self.replicas[SHARED] if shared else self._own_replica(rank, have, compressor)
        return replica.answer(have, compressor), replica.number

    def _own_replica(self, rank: int, have: int, compressor: Compressor | None) -> Replica:
        """A worker's own replica, in async mode: each answer is a step of its own, and a lost one is sent again."""
        replica = self.replicas.get(rank)
        if replica is None:
            replica = self.replicas[rank] = Replica(self.key, self.value, rank=rank)
        elif have == replica.number and compressor is not None:
            replica.follow(self.value, compressor, replaced=self.replaced)
        elif have < 0 or have != replica.number - 1:
            replica.jump(self.value)
        return replica

    def _update(self, ordered: Sequence[Contribution], updaters: Mapping[int, Updater]) -> None:
        merged = self._sum(ordered)
        number = max(push.optimizer for push in ordered)
        # A setting that was forgotten since is the newest by now, and never none.
        updater = updaters.get(number, updaters[max(updaters)] if number and updaters else None)
        self.replaced = updater is None
        if updater is None:
            # The old value may still be on its way to a worker, so it is replaced and not overwritten.
            self.value = merged.to(self.value.dtype).view(self.value.shape)
        else:
            if self.lent:
                # An answer that is still being sent reads the old memory.
                self.value = lease(self.value.shape, self.value.dtype).copy_(self.value)
            sparse = bool(ordered) and all(push.rows is not None for push in ordered)
            rows = merged_rows([push.rows for push in ordered if push.rows is not None]) if sparse else None
            self._update_by(updater, merged, rows)
        self.lent = False
        self.version += 1

    def _update_alone(self, push: Contribution, updaters: Mapping[int, Updater]) -> None:
        """Apply one worker's push, by the newest setting if the worker itself has made none: in async mode no push of
        another worker is there that names it, and a gradient would replace what others have trained.
        """
        self._update([replace(push, optimizer=push.optimizer or max(updaters, default=0))], updaters)

    def _update_by(self, updater: Updater, merged: Tensor, rows: Tensor | None) -> None:
        updater(self.key, merged, self.value, rows)

    def data(self) -> Tensor:
        """Return the bytes of the value, which may be its memory: the next push may change them."""
        return as_bytes(self.value)

    def lend(self) -> Tensor:
        """Return the bytes of the value, which no later push changes."""
        self.lent = True
        return self.data()

    def apply_one(self, rank: int, step: int, push: Contribution, updaters: Mapping[int, Updater]) -> bool:
        """Apply a push in async mode as soon as the worker's earlier pushes are applied; return False if it came
        before.

        A short push, or a more urgent one, may overtake the pieces of a long one of the same key.
        """
        newest = self.last.get(rank, 0)
        if step <= newest or rank in self.pending.get(step, {}):
            return False
        self.pending.setdefault(step, {})[rank] = push
        while (following := self.pending.get(newest + 1, {}).pop(rank, None)) is not None:
            newest += 1
            if not self.pending[newest]:
                del self.pending[newest]
            self.last[rank] = newest
            self._update_alone(following, updaters)
        return True

    def check_distance(self, rank: int, step: int) -> None:
        """Refuse a push in async mode that is too far from the worker's last one; nothing changes.

        Raises:
            ConfigError: the push is ``AHEAD`` steps further than the newest of the worker's that could be applied.
        """
        newest = self.last.get(rank, 0)
        if step > newest + AHEAD:
            raise ConfigError(
                f"{self.title} has step {newest} of worker {rank}, a push is for step {step}: pull, or wait at a "
                f"barrier, before {AHEAD} steps are on their way"
            )

    def apply_early(self, rank: int, updaters: Mapping[int, Updater]) -> bool:
        """Apply in async mode the pushes that wait for one that will never come; return whether there was one."""
        early = [step for step in sorted(self.pending) if rank in self.pending[step]]
        for step in early:
            self._update_alone(self.pending[step].pop(rank), updaters)
            self.last[rank] = step
            if not self.pending[step]:
                del self.pending[step]
        return bool(early)

    def _sum(self, pushes: Sequence[Contribution]) -> Tensor:
        first = pushes[0].compression
        if any(push.rows is not None for push in pushes) or any(push.compression != first for push in pushes):
            return self._sum_mixed(pushes)
        if first.push is None:
            return self._sum_dense(pushes)
        return self.merger.merge(first, [push.data for push in pushes])

    def _sum_dense(self, pushes: Sequence[Contribution]) -> Tensor:
        tensors = [push.data.view(self.value.dtype).view(self.value.shape) for push in pushes]
        if not self.value.is_floating_point():
            return torch.stack(tensors).sum(0, dtype=self.value.dtype)
        # The first push is no longer needed: it becomes the sum.
        wide = torch.promote_types(self.value.dtype, torch.float32)
        out = tensors[0].to(wide)
        for tensor in tensors[1:]:
            out.add_(tensor)
        return out

    def _sum_mixed(self, pushes: Sequence[Contribution]) -> Tensor:
        out = lease(self.value.shape, torch.promote_types(self.value.dtype, torch.float32)).zero_()
        for push in pushes:
            if push.rows is not None and push.compression.push is not None:
                out.add_(self.merger.merge_rows(push.compression, [push.data], [push.rows]))
            elif push.rows is not None:
                values = push.data.view(self.value.dtype).view(len(push.rows), *self.value.shape[1:])
                out.index_add_(0, push.rows, values.to(out.dtype))
            elif push.compression.push is not None:
                out.add_(self.merger.merge(push.compression, [push.data]))
            else:
                out.add_(push.data.view(self.value.dtype).view(self.value.shape))
        return out


def payload_sizes(compression: Compression, shape: tuple[int, ...], itemsize: int) -> range:
    """Compute the allowed numbers of bytes for the elements or the payload of a tensor."""
    if compression.push is None:
        nbytes = math.prod(shape) * itemsize
        return range(nbytes, nbytes + 1)
    return sizes(compression.push, shape)
