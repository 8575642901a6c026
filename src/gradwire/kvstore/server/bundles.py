"""Many small keys in one message: what a worker makes of one call, and what its server does with it.

A key of its own message costs both sides as much work as a hundred kilobytes of a large one. So the small keys of one
push, or one pull, travel together: one header that names them, one run of bytes. Each stays what it was, a push of a
key and a step that counts once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from gradwire.errors import WireError
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.messages import CHUNK, Outgoing, chunk_count, pack
from gradwire.kvstore.protocol.small_keys import ROOM, Bundle
from gradwire.kvstore.server.membership import ServerSessions
from gradwire.kvstore.server.parts import Contribution, StoredPart, raw
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.session import WorkerSession
from gradwire.kvstore.server.waiting import Topic
from gradwire.types import align

__all__ = ["ServerBundles"]


FRAMES = 16 * ROOM
"""Bytes of answers that a server keeps for the other workers, who will ask for the same."""


class ServerBundles(ServerSessions):
    """The requests that name many keys."""

    def __init__(self, rules: Rules, entries: Iterable[StoredPart] | None = None) -> None:
        super().__init__(rules, entries)
        self._frames: OrderedDict[tuple[StoreKey, ...], tuple[list[int], Tensor]] = OrderedDict()

    @abstractmethod
    def _when(
        self, topic: Topic, session: WorkerSession, seq: int, what: Callable[[], str], ready: Callable[[], bool],
        answer: Callable[[], list[Outgoing]],
    ) -> list[Outgoing]: ...  # fmt: skip

    def _pushes(
        self, session: WorkerSession, rest: list[memoryview], seq: int, chunk: int, chunks: int, items: list[list[Any]],
        config: int, optimizer: int,
    ) -> list[Outgoing]:  # fmt: skip
        compression = self._compression(session, config)
        self._check_optimizer(optimizer)
        # Sizes before any memory is taken, and all of it before any of it counts.
        for key, _, size in items:
            if size not in self._entry(key).expected(compression):
                raise WireError(f"a push of key {key!r} has {size} bytes")
        nbytes = sum(align(size) for _, _, size in items)
        if nbytes > ROOM:
            raise WireError(f"a push of many keys has at most {ROOM} bytes, not {nbytes}")
        data = session.take(seq, chunk, chunks, rest, range(nbytes, nbytes + 1))
        if data is None:
            return []
        taken, start = [], 0
        for key, step, size in items:
            entry = self.entries[key]
            contribution = entry.contribution(compression, data[start : start + size], -1, optimizer)
            if self.sync:
                entry.is_new(session.rank, step, contribution)
            taken.append((entry, step, contribution))
            start += align(size)
        method = compression.push.name if compression.push is not None else "none"
        for entry, step, contribution in taken:
            self._take_push(session, entry, step, contribution, method)
        return self._pushed(session, seq, [(entry, step) for entry, step, _ in taken], 0)

    def _check_optimizer(self, number: int) -> None:
        if number and number not in self.updaters:
            raise WireError(f"a push names optimizer setting {number}, which was never sent")

    def _take_push(
        self, session: WorkerSession, entry: StoredPart, step: int, contribution: Contribution, method: str
    ) -> None:
        """Let one push count, once."""
        counters = self.counters
        counters.bytes_in[method] = counters.bytes_in.get(method, 0) + contribution.data.numel()
        counters.pushes[method] = counters.pushes.get(method, 0) + entry.count
        if self.sync:
            fresh = entry.offer(session.rank, step, contribution)
            if fresh:
                counters.begin(entry.topic, step, session.seen)
        else:
            fresh = entry.apply_one(session.rank, step, contribution, self.updaters)
            counters.steps += fresh * entry.count
        counters.repeated += entry.count * (not fresh)
        self._touched.add(entry.topic)

    def _pushed(
        self, session: WorkerSession, seq: int, steps: list[tuple[StoredPart, int]], start: int
    ) -> list[Outgoing]:
        """Say that pushes count, once none of them is too far ahead of the slowest worker's."""
        self._keep_apart(steps)
        for at, (entry, step) in enumerate(steps[start:], start):
            ready = partial(self._within_bound, entry, step)
            if not ready():
                again = partial(self._pushed, session, seq, steps, at)
                return self._when(entry.key, session, seq, self._missing(entry, session.rank, step), ready, again)
        return [(session.peer, [pack("dones", seq=seq, durable=self._all_durable(session, steps))])]

    def _pulls(
        self, session: WorkerSession, rest: list[memoryview], seq: int, items: list[list[Any]]
    ) -> list[Outgoing]:
        if len({key for key, _ in items}) < len(items):
            raise WireError("a pull of many keys names one of them twice")
        steps = [(self._entry(key), step) for key, step in items]
        nbytes = sum(align(entry.value.nbytes) for entry, _ in steps)
        if nbytes > ROOM:
            raise WireError(f"a pull of many keys gets at most {ROOM} bytes, not {nbytes}")
        return self._pulled(session, seq, steps, 0)

    def _pulled(
        self, session: WorkerSession, seq: int, steps: list[tuple[StoredPart, int]], start: int
    ) -> list[Outgoing]:
        """The values, once all of them are there."""
        self._keep_apart(steps)
        for at, (entry, step) in enumerate(steps[start:], start):
            if not self._has_step(entry, session.rank, step):
                ready = partial(self._has_step, entry, session.rank, step)
                again = partial(self._pulled, session, seq, steps, at)
                return self._when(entry.key, session, seq, self._missing(entry, session.rank, step), ready, again)
        self.counters.pulls += len(steps)
        data = self._frame([entry for entry, _ in steps])
        self.counters.bytes_out["none"] = self.counters.bytes_out.get("none", 0) + data.numel()
        count, view, durable = chunk_count(data.numel()), data.numpy().data, self._all_durable(session, steps)
        told = {"seq": seq, "chunks": count, "nbytes": data.numel(), "durable": durable}
        return [
            (session.peer, [pack("values", chunk=i, **told), view[i * CHUNK : (i + 1) * CHUNK]]) for i in range(count)
        ]

    def _frame(self, entries: Sequence[StoredPart]) -> Tensor:
        """The values one after the other, made once for all workers that pull the same."""
        keys, versions = tuple(entry.key for entry in entries), [entry.version for entry in entries]
        known = self._frames.get(keys)
        if known is not None and known[0] == versions:
            return known[1]
        bundle = Bundle()
        for entry in entries:
            bundle.add(entry.key, 0, raw(entry.value))
        self._frames[keys] = versions, bundle.data()
        self._frames.move_to_end(keys)
        while sum(frame.numel() for _, frame in self._frames.values()) > FRAMES:
            self._frames.popitem(last=False)
        return self._frames[keys][1]

    def _keep_apart(self, steps: Sequence[tuple[StoredPart, int]]) -> None:
        """Each key alone again: while a request waited for one of its keys, others may have come together."""
        for entry, _ in steps:
            self._entry(entry.key)

    def _all_durable(self, session: WorkerSession, steps: Sequence[tuple[StoredPart, int]]) -> list[int]:
        return [self._durable(entry, session.rank, self._version(entry, session.rank)) for entry, _ in steps]
