"""A key of a distributed store in a worker: what a push sends for it, and where a pull writes its value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor

from gradwire.kvstore.protocol.buffers import as_bytes, lease
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.keys import KeyPart, StoreKey
from gradwire.kvstore.protocol.merge import add_dense, row_sparse
from gradwire.kvstore.protocol.payloads import sent
from gradwire.kvstore.protocol.replica import Held
from gradwire.kvstore.protocol.sender import Sender, encode_all
from gradwire.kvstore.protocol.small_keys import is_small
from gradwire.kvstore.worker.connection import ScatterSink

if TYPE_CHECKING:
    from gradwire.kvstore.worker.worker_key_list import WorkerKeyList

__all__ = ["PushProgress", "PushedPart", "WorkerKey", "WorkerUnit", "inside"]


@dataclass
class PushProgress:
    """The number of pushed steps, and the pushes that may be unanswered, of one key or of a list of joined keys."""

    step: int = 0
    pushes: list[Future[int]] = field(default_factory=list)

    def forget_answered(self) -> None:
        """Forget the pushes that were answered.

        Raises:
            GradwireError: one of them failed.
        """
        for future in self.pushes:
            if future.done():
                # Nobody else waits for it, so this is where the error of a push is raised.
                future.result()
        self.pushes = [future for future in self.pushes if not future.done()]


class PushedPart(NamedTuple):
    """The bytes that a push sends to one server.

    Args:
        server: index of the server.
        data: elements or payload, uint8; of a row-sparse gradient, the row numbers come first.
        rows: number of rows of a row-sparse gradient; -1 of a dense one.
        borrowed: true if ``data`` is the caller's gradient, which must be copied before the push returns.
    """

    server: int
    data: Tensor
    rows: int = -1
    borrowed: bool = False


@dataclass(eq=False)
class WorkerKey:
    """A key in a worker.

    Args:
        key: name in the store.
        shape: shape of the value.
        dtype: dtype of the value.
        sparse: true if the value was initialised as a row-sparse tensor.
        parts: parts of the key on the servers.
        seed: seed of the random streams of the method.
        rank: rank of this worker.
        progress: steps and pushes; shared with the other keys while they are joined.
        senders: the encoder of each part, by the part's start.
        joined: list with whose keys this one is joined now; None: the key is alone.
        held: the value of each part after the last compressed answer, by the part's start.
        made: step of each part, by its start, when this worker began. A worker that was killed may have pushed some.
    """

    key: StoreKey
    shape: torch.Size
    dtype: torch.dtype
    sparse: bool
    parts: list[KeyPart]
    seed: int = 0
    rank: int = 0
    progress: PushProgress = field(default_factory=PushProgress)
    senders: dict[int, Sender] = field(default_factory=dict)
    joined: WorkerKeyList | None = None
    held: dict[int, Held] = field(default_factory=dict)
    made: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nbytes = self.shape.numel() * self.dtype.itemsize
        self.unit, self.keys, self.title = self.key, [self.key], f"key {self.key!r}"
        self.small = len(self.parts) == 1 and is_small(self.key, nbytes)

    def separate(self) -> WorkerKey:
        """Separate the key from the list with which it is joined, and return it."""
        if self.joined is not None:
            self.joined.separate()
        return self

    def encode(self, grads: Sequence[Tensor], compression: Compression) -> list[PushedPart]:
        """Encode the sum of the gradients of this worker's senders, for each server.

        Args:
            grads: gradients of the key's shape, dense or row-sparse, one for each sender.
            compression: compression that the caller has set.

        Raises:
            ConfigError: a value is not finite and would be compressed.
        """
        # A process that took an ended worker's place must not push again what that one had pushed.
        parts = self.lacking()
        if self.in_rows and all(grad.is_sparse for grad in grads):
            total = (grads[0] if len(grads) == 1 else torch.stack(list(grads)).sum(0)).coalesce().cpu()
            return self._encode_rows(parts, [self.rows_of(part, total) for part in parts], compression)
        total = self._total(grads)
        if compression.push is None:
            total = total.to(self.dtype)
        pieces = [total.view(-1)[part.start : part.stop].view(self.part_shape(part)) for part in parts]
        if compression.push is None:
            borrowed = total is grads[0]
            return [PushedPart(part.server, as_bytes(x), -1, borrowed) for part, x in zip(parts, pieces, strict=True)]
        payloads = self._payloads(parts, pieces, compression)
        return [PushedPart(part.server, payload) for part, payload in zip(parts, payloads, strict=True)]

    def receive(self, outs: Sequence[Tensor]) -> tuple[Tensor, list[tuple[int, ScatterSink]]]:
        """Choose the tensor for the value: one of ``outs`` that has the form of the value, or else new memory.

        Returns:
            The tensor, and for each part its server and its place in the tensor.
        """
        value = next((out.detach() for out in outs if self._has_form(out)), None)
        if value is None:
            value = lease(self.shape, self.dtype)
        data, size = as_bytes(value).numpy(), self.dtype.itemsize
        blocks = [(part.server, data[size * part.start : size * part.stop]) for part in self.parts]
        return value, [(server, ScatterSink([(0, block)], len(block))) for server, block in blocks]

    def sender(self, part: KeyPart, compression: Compression) -> Sender:
        """Find or make the sender that encodes a part and keeps its residual."""
        if part.start not in self.senders:
            name = self.key if len(self.parts) == 1 else f"{self.key!r}[{part.start}]"
            shape = torch.Size(self.part_shape(part))
            self.senders[part.start] = Sender(name, shape, seed=self.seed, rank=self.rank)
        sender = self.senders[part.start]
        sender.use(compression)
        return sender

    @property
    def step(self) -> int:
        """The number of steps that this worker has pushed."""
        return self.progress.step

    @property
    def in_rows(self) -> bool:
        """Return whether every part has whole rows.

        Small keys have one part, and row-sparse keys are cut between rows.
        """
        return self.shape.numel() > 0 and (self.sparse or len(self.parts) == 1)

    def lacking(self) -> list[KeyPart]:
        """Find the parts whose next step was not made before this worker began."""
        return [part for part in self.parts if self.made.get(part.start, 0) <= self.step]

    def part_shape(self, part: KeyPart) -> tuple[int, ...]:
        """Compute the shape of a part: whole rows where that is possible, or else a vector."""
        if len(self.parts) == 1:
            return tuple(self.shape)
        return (len(self.rows(part)), *self.shape[1:]) if self.in_rows else (part.numel,)

    def rows(self, part: KeyPart) -> range:
        """Compute the rows of a part that has whole rows."""
        width = math.prod(self.shape[1:])
        return range(part.start // width, part.stop // width)

    def rows_of(self, part: KeyPart, grad: Tensor) -> Tensor:
        """Select a part of a coalesced row-sparse gradient; its rows are counted from the part's first row."""
        mine, (places,) = self.rows(part), grad.indices()
        lo, hi = inside(places, mine)
        return row_sparse(places[lo:hi] - mine.start, grad.values()[lo:hi], self.part_shape(part))

    def _total(self, grads: Sequence[Tensor]) -> Tensor:
        """Sum the gradients: contiguous, on the CPU; a single gradient that is so already is returned itself."""
        one = grads[0]
        if len(grads) == 1 and one.device.type == "cpu" and not one.is_sparse and one.is_contiguous():
            return one
        return add_dense(grads, self.shape, "cpu")

    def _encode_rows(
        self, parts: Sequence[KeyPart], grads: Sequence[Tensor], compression: Compression
    ) -> list[PushedPart]:
        rows = [grad.indices()[0].contiguous() for grad in grads]
        if compression.push is None:
            values = [as_bytes(grad.values().to(self.dtype)) for grad in grads]
        else:
            values = self._payloads(parts, grads, compression)
        return [
            PushedPart(part.server, torch.cat([as_bytes(own), data]), len(own))
            for part, own, data in zip(parts, rows, values, strict=True)
        ]

    def _payloads(self, parts: Sequence[KeyPart], grads: Sequence[Tensor], compression: Compression) -> list[Tensor]:
        assert compression.push is not None
        payloads = encode_all([self.sender(part, compression) for part in parts], grads)
        shapes = [grad.values().shape if grad.is_sparse else grad.shape for grad in grads]
        return [sent(compression.push, shape, payload) for shape, payload in zip(shapes, payloads, strict=True)]

    def _has_form(self, out: Tensor) -> bool:
        """Return whether a tensor's memory can hold the bytes of the value."""
        plain = out.layout == torch.strided and out.device.type == "cpu"
        return plain and out.dtype == self.dtype and out.is_contiguous()


WorkerUnit: TypeAlias = "WorkerKey | WorkerKeyList"
"""The unit that a worker pushes and pulls as one: a key, or a list of joined keys."""


def inside(places: Tensor, rows: range) -> tuple[int, int]:
    """Find the range of increasing indices that lie in a range of rows."""
    lo, hi = torch.searchsorted(places, torch.tensor([rows.start, rows.stop], device="cpu")).tolist()
    return lo, hi
