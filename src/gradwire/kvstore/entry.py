"""A part of a key on its server: its value, and which pushes of which step are in.

Law: in ``sync`` a step is applied once, when every live worker's push for it is there, in the order of ranks; so the
result does not depend on who was faster. A push that comes again, for a step that was applied or that has this
worker's push already, changes nothing. What waits is bounded: a worker that waits for its pulls has one push of a key
here, and none may have more than ``AHEAD``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.compression import Compression
from gradwire.kvstore.keys import StoreKey
from gradwire.kvstore.merge import Merger
from gradwire.kvstore.optimizers import Updater

__all__ = ["AHEAD", "Contribution", "Entry", "expected_nbytes"]

AHEAD = 256
"""Steps of which a server keeps pushes before all workers' are in."""


@dataclass
class Contribution:
    """One worker's push: bytes, and what they mean.

    Args:
        data: uint8; a payload, or the elements themselves.
        compression: that made the payload; its ``push`` is None where the elements are sent as they are.
        optimizer: number of the optimizer's setting that the worker had when it pushed.
        rows: int64, of a row-sparse push; else None.
    """

    data: Tensor
    compression: Compression
    optimizer: int = 0
    rows: Tensor | None = None


@dataclass
class Entry:
    """A part of a key.

    Args:
        key: of the store.
        value: of the part, in its shape.
        start: first element in the whole key.
        total: elements of the whole key.
        sparse: the value was initialised as a row-sparse one.
        version: steps applied.
    """

    key: StoreKey
    value: Tensor
    start: int
    total: int
    sparse: bool
    version: int = 0
    durable: int = 0
    pending: dict[int, dict[int, Contribution]] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    """The last step of each worker that is in the value."""

    def __post_init__(self) -> None:
        self.merger = Merger(self.value.shape)

    def check_same(self, shape: torch.Size, dtype: torch.dtype, start: int, total: int) -> None:
        """Refuse a worker that has this key in another form.

        Raises:
            ConfigError: it has.
        """
        ours = (self.value.shape, self.value.dtype, self.start, self.total)
        if ours != (shape, dtype, start, total):
            raise ConfigError(
                f"key {self.key!r} is {self.value.dtype} of shape {tuple(self.value.shape)} at {self.start} of "
                f"{self.total} elements, another worker has {dtype} of shape {tuple(shape)} at {start} of {total}"
            )

    def contribution(self, compression: Compression, data: Tensor, rows: int, optimizer: int) -> Contribution:
        """What a push means, checked before anything is decoded.

        Args:
            compression: of the worker.
            data: uint8, of a size that ``expected_nbytes`` allows, after the rows of a row-sparse push.
            rows: how many; -1 of a dense push.
            optimizer: number of the setting.

        Raises:
            WireError: a row that does not exist, or a payload that cannot be decoded safely.
        """
        shape, indices = tuple(self.value.shape), None
        if rows >= 0:
            indices, data = data[: 8 * rows].view(torch.int64), data[8 * rows :].clone()
            if rows and not (int(indices.min()) >= 0 and int(indices.max()) < shape[0]):
                raise WireError(f"a push names a row outside of key {self.key!r}")
            shape = (rows, *shape[1:])
        if compression.push is not None:
            layout = compression.push.layout(shape)
            if data.numel() < layout.nbytes:
                data = torch.cat([data, torch.zeros(layout.nbytes - data.numel(), dtype=torch.uint8)])
            compression.push.check_payload(layout.views(data), shape)
        return Contribution(data, compression, optimizer, indices)

    def offer(self, rank: int, step: int, contribution: Contribution) -> bool:
        """Take a push in; False: it was here before.

        Raises:
            ConfigError: the step was made without the worker; or it is ``AHEAD`` steps further than the key: it pushes
                and never pulls.
        """
        if self.last.get(rank, 0) < step <= self.version:
            raise ConfigError(
                f"step {step} of key {self.key!r} was made without worker {rank}, and step {self.version} is made: it "
                "had been silent for too long, or had finished; start it again"
            )
        if step <= self.version or rank in self.pending.get(step, {}):
            return False
        if step > self.version + AHEAD:
            raise ConfigError(
                f"key {self.key!r} is at step {self.version}, a push is for step {step}: pull, or wait at a barrier, "
                f"before a worker is {AHEAD} steps ahead of the slowest"
            )
        self.pending.setdefault(step, {})[rank] = contribution
        return True

    def ready(self, live: Collection[int]) -> dict[int, Contribution] | None:
        """The pushes of the next step, by rank, if all live workers' are there; they are taken out."""
        pushes = self.pending.get(self.version + 1)
        if pushes is None or not set(live) <= pushes.keys():
            return None
        return self.pending.pop(self.version + 1)

    def apply(self, pushes: Mapping[int, Contribution], updaters: Mapping[int, Updater]) -> None:
        """Make the next version of the value."""
        ordered = [pushes[rank] for rank in sorted(pushes)]
        merged = self._sum(ordered)
        updater = updaters.get(max(push.optimizer for push in ordered))
        if updater is None:
            self.value.copy_(merged)
        else:
            updater(self.key, merged, self.value)
        self.version += 1
        self.last |= dict.fromkeys(pushes, self.version)

    def apply_one(self, rank: int, step: int, push: Contribution, updaters: Mapping[int, Updater]) -> bool:
        """In async: apply a push at once; False: it was applied before."""
        if step <= self.last.get(rank, 0):
            return False
        self.apply({rank: push}, updaters)
        self.last[rank] = step
        return True

    def _sum(self, pushes: list[Contribution]) -> Tensor:
        first = pushes[0].compression
        if any(push.rows is not None for push in pushes) or any(push.compression != first for push in pushes):
            return self._sum_mixed(pushes)
        if first.push is None:
            return self._sum_dense(pushes)
        return self.merger.merge(first, [push.data for push in pushes])

    def _sum_dense(self, pushes: list[Contribution]) -> Tensor:
        tensors = [push.data.view(self.value.dtype).view(self.value.shape) for push in pushes]
        if not self.value.is_floating_point():
            return torch.stack(tensors).sum(0, dtype=self.value.dtype)
        # The first push is no longer needed: it becomes the sum.
        wide = torch.promote_types(self.value.dtype, torch.float32)
        out = tensors[0].to(wide)
        for tensor in tensors[1:]:
            out.add_(tensor)
        return out

    def _sum_mixed(self, pushes: list[Contribution]) -> Tensor:
        out = torch.zeros(self.value.shape, dtype=torch.promote_types(self.value.dtype, torch.float32))
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


def expected_nbytes(entry: Entry, compression: Compression, rows: int) -> range:
    """How many bytes a push may have: exactly as many as its layout says, fewer only where its size varies.

    Args:
        entry: that it is for.
        compression: that made it.
        rows: of a row-sparse push, -1 of a dense one.
    """
    shape = tuple(entry.value.shape) if rows < 0 else (rows, *entry.value.shape[1:])
    if compression.push is None:
        nbytes = math.prod(shape) * entry.value.itemsize
        return range(nbytes, nbytes + 1)
    layout = compression.push.layout(shape)
    least = layout.nbytes if compression.push.fixed_size else layout.offsets[-1]
    return range(least, layout.nbytes + 1)
