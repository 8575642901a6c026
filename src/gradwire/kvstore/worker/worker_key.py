"""A key as a worker of a distributed store knows it, and the requests that pull it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradwire.compressors.base import Compressor
from gradwire.kvstore.protocol.buffers import lease
from gradwire.kvstore.protocol.keys import KeyPart, StoreKey
from gradwire.kvstore.protocol.merge import add_dense, row_sparse
from gradwire.kvstore.protocol.replica import Held, follows
from gradwire.kvstore.protocol.sender import Sender
from gradwire.kvstore.protocol.small_keys import Bundle, Bundles, bundled
from gradwire.kvstore.worker.connection import Request, ScatterSink

if TYPE_CHECKING:
    from gradwire.kvstore.worker.lanes import Lane

__all__ = ["Pulling", "PushProgress", "WorkerKey", "as_bytes", "as_is", "row_requests"]


@dataclass
class PushProgress:
    """The pushed steps, and the pushes that may not have been answered, of one key or of all keys in a lane."""

    step: int = 0
    pushes: list[Future[int]] = field(default_factory=list)

    def forget_answered(self) -> None:
        """Forget pushes that were answered.

        Raises:
            GradwireError: what one of them met with.
        """
        for future in self.pushes:
            if future.done():
                future.result()
        self.pushes = [future for future in self.pushes if not future.done()]


@dataclass
class WorkerKey:
    """A key, as this worker knows it."""

    shape: torch.Size
    dtype: torch.dtype
    sparse: bool
    parts: list[KeyPart]
    progress: PushProgress = field(default_factory=PushProgress)
    senders: dict[int, Sender] = field(default_factory=dict)
    lane: Lane | None = None
    held: dict[int, Held] = field(default_factory=dict)
    made: dict[int, int] = field(default_factory=dict)
    """The step of each part, by its start, when this worker came: one that was killed may have pushed some of them."""

    def small(self, key: StoreKey) -> bool:
        """Return whether the key travels with others."""
        return len(self.parts) == 1 and bundled(key, self.shape.numel() * self.dtype.itemsize)

    def total(self, grads: Sequence[Tensor], *, copied: bool) -> Tensor:
        """Sum the gradients of a worker's senders: contiguous, on the CPU.

        Args:
            grads: dense, one for each sender.
            copied: in memory of its own; False: the gradient itself where there is one, and it is like that.
        """
        one = grads[0] if len(grads) == 1 and not copied else None
        if one is not None and one.device.type == "cpu" and not one.is_sparse and one.is_contiguous():
            return one
        return add_dense(grads, self.shape, "cpu")

    def sender(self, key: StoreKey, part: KeyPart, seed: int, rank: int) -> Sender:
        """The sender that encodes a part, and keeps its residual."""
        if part.start not in self.senders:
            name = key if len(self.parts) == 1 else f"{key!r}[{part.start}]"
            self.senders[part.start] = Sender(name, torch.Size(self.part_shape(part)), seed=seed, rank=rank)
        return self.senders[part.start]

    @property
    def step(self) -> int:
        """The number of steps that this worker has pushed."""
        return self.progress.step

    @property
    def in_rows(self) -> bool:
        """Return whether every part has whole rows, as small keys have, and row-sparse ones, which are cut between
        rows.
        """
        return self.shape.numel() > 0 and (self.sparse or len(self.parts) == 1)

    def lacking(self) -> list[KeyPart]:
        """The parts whose next step was not made before this worker came."""
        return [part for part in self.parts if self.made.get(part.start, 0) <= self.step]

    def part_shape(self, part: KeyPart) -> tuple[int, ...]:
        if len(self.parts) == 1:
            return tuple(self.shape)
        return (len(self.rows(part)), *self.shape[1:]) if self.in_rows else (part.numel,)

    def rows(self, part: KeyPart) -> range:
        """The rows of a part, if parts have whole rows."""
        width = math.prod(self.shape[1:])
        return range(part.start // width, part.stop // width)

    def rows_of(self, part: KeyPart, grad: Tensor) -> Tensor:
        """The part of a coalesced row-sparse gradient, with rows counted from the part's first."""
        mine, (places,) = self.rows(part), grad.indices()
        lo, hi = inside(places, mine)
        return row_sparse(places[lo:hi] - mine.start, grad.values()[lo:hi], self.part_shape(part))


class Pulling:
    """The requests of one pull, and the values that their answers make.

    Args:
        compressor: of the answers; None: values come as they are.
        config: number under which the servers know it.
        priority: of the requests.
    """

    def __init__(self, compressor: Compressor | None, config: int, priority: int) -> None:
        self.compressor, self.config, self.priority = compressor, config, priority
        self.requests: list[Request] = []
        self.servers: list[int] = []
        self._answers: list[tuple[Request, Held, Tensor]] = []
        self._bundles = Bundles(self._ask)

    def add(self, key: StoreKey, shared: WorkerKey, outs: Sequence[Tensor] = ()) -> Tensor:
        """Request a key; return the tensor that will have its value after all answers and ``fill``.

        It is one of ``outs`` where the bytes can come into it as they are.
        """
        own = direct(outs, shared)
        value = lease(shared.shape, shared.dtype) if own is None else own
        if shared.small(key) and not follows(self.compressor, shared.shape, shared.dtype):
            self._bundles.add(shared.parts[0].server, key, shared.step, as_bytes(value))
            return value
        for part in shared.parts:
            self.requests.append(self._request(key, shared, part, value.view(-1)[part.start : part.stop]))
            self.servers.append(part.server)
        return value

    def close(self) -> None:
        """Send the requests that are left, because all keys were added."""
        self._bundles.close()

    def _ask(self, server: int, bundle: Bundle) -> None:
        fields = {"items": [[unit, step] for unit, step, _ in bundle.items]}
        sink = ScatterSink([(start, piece.numpy()) for start, piece in bundle.places], bundle.nbytes)
        self.requests.append(Request("pulls", fields, out=sink, priority=self.priority))
        self.servers.append(server)

    def fill(self) -> None:
        """Copy the answers that did not go directly into their tensors.

        Raises:
            WireError: bytes that are no answer.
        """
        for request, held, room in self._answers:
            room.copy_(held.take(request.answer or bytearray(), self.compressor).view(-1))

    def _request(self, key: StoreKey, shared: WorkerKey, part: KeyPart, room: Tensor) -> Request:
        fields, shape = {"key": key, "step": shared.step}, shared.part_shape(part)
        if not follows(self.compressor, shape, shared.dtype):
            return Request("pull", fields, out=as_bytes(room), priority=self.priority)
        held = shared.held.setdefault(part.start, Held(shape, shared.dtype))
        request = Request("follow", {**fields, "config": self.config, "have": held.number}, priority=self.priority)
        self._answers.append((request, held, room))
        return request


def row_requests(
    key: StoreKey, shared: WorkerKey, rows: Tensor, values: Tensor, priority: int
) -> tuple[list[Request], list[int]]:
    """Make the requests to each server for rows in increasing order; the answers are written to ``values``."""
    requests, servers = [], []
    for part in shared.parts:
        lo, hi = inside(rows, shared.rows(part))
        if hi > lo:
            asked = as_bytes(rows[lo:hi] - shared.rows(part).start)
            fields = {"key": key, "step": shared.step}
            requests.append(Request("rows", fields, asked, as_bytes(values[lo:hi]), priority))
            servers.append(part.server)
    return requests, servers


def inside(places: Tensor, rows: range) -> tuple[int, int]:
    """Find the range of increasing indices that lie in a range of rows."""
    lo, hi = torch.searchsorted(places, torch.tensor([rows.start, rows.stop])).tolist()
    return lo, hi


def direct(outs: Sequence[Tensor], shared: WorkerKey) -> Tensor | None:
    """The first tensor that can receive the value's bytes directly."""
    return next((out.detach() for out in outs if as_is(out, shared)), None)


def as_is(tensor: Tensor, shared: WorkerKey) -> bool:
    """Return whether a tensor's memory is the value's bytes."""
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return plain and tensor.dtype == shared.dtype and tensor.is_contiguous()


def as_bytes(tensor: Tensor) -> Tensor:
    """View the memory of a contiguous tensor as bytes."""
    flat = tensor.contiguous().view(-1)
    # One element, or none, is contiguous whatever its stride.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)
