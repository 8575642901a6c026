"""What a server knows, and how it says it; who asks, and when, is the core's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.messages import CHUNK, Outgoing, chunk_count, pack
from gradwire.kvstore.protocol.optimizers import Updater
from gradwire.kvstore.protocol.replica import is_payload
from gradwire.kvstore.server.parts import StoredPart
from gradwire.kvstore.server.rules import Counters, Rules
from gradwire.kvstore.server.session import WorkerSession
from gradwire.kvstore.server.waiting import Topic, Waiting, Waits

__all__ = ["ServerState", "workers"]


class ServerState:
    """Values, optimizers, and who is there.

    Args:
        rules: how the server behaves.
        entries: restored from a snapshot; None: it starts empty.
    """

    def __init__(self, rules: Rules, entries: Iterable[StoredPart] | None = None) -> None:
        self.rules = rules
        self.epoch = os.urandom(16)
        self.restored = entries is not None
        self.entries: dict[StoreKey, StoredPart] = {entry.key: entry for entry in entries or ()}
        self.stored = sum(entry.value.nbytes for entry in self.entries.values())
        self.updaters: dict[int, Updater] = {}
        self.saved_states: dict[StoreKey, dict[str, Any]] = {}
        self.counters = Counters()
        self.sync: bool | None = None
        self.staleness = rules.staleness
        self.dead: set[int] = set()
        self.finished: set[int] = set()
        self.left: set[int] = set()
        self._sessions: dict[bytes, WorkerSession] = {}
        self._waits = Waits()
        self._touched: set[Topic] = set()
        self._again: list[Waiting] = []
        """Requests that waited for something that is no more: they are looked at anew."""

    @property
    def live(self) -> set[int]:
        """Ranks whose pushes a step waits for."""
        gone = self.finished | (self.dead if self.rules.on_dead_worker == "continue" else set())
        return set(range(self.rules.workers)) - gone

    @property
    def present(self) -> int:
        """Workers that are connected."""
        return len(self._sessions)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._waits)

    def optimizer_states(self) -> dict[StoreKey, dict[str, Any]]:
        """What the optimizer keeps, by key."""
        updater = self._newest()
        return self.saved_states if updater is None else updater.state_dict()

    def mark_durable(self) -> None:
        """All that was applied is on the disk."""
        for entry in self.units():
            entry.durable, entry.durable_of = entry.version, dict(entry.last)

    def _error(self, peer: bytes, seq: int, kind: str, error: Exception) -> Outgoing:
        self.counters.refused += 1
        return peer, [pack("error", seq=seq, kind=kind, text=printable(str(error)))]

    def _silence(self) -> str:
        have = "has" if len(self.dead) == 1 else "have"
        return f"{workers(self.dead)} {have} not been heard of for {self.rules.dead_after:g} s"

    def _leave(self, session: WorkerSession, rest: list[memoryview]) -> list[Outgoing]:
        """Of who did not say ``finish`` before, the connection was closed and no more: it may come again."""
        if session.rank in self.finished:
            self.left.add(session.rank)
            self._close(session.peer)
        return []

    def _close(self, peer: bytes) -> list[Outgoing]:
        if self._sessions.pop(peer, None) is not None:
            self._waits.drop(peer)
            self._again = [each for each in self._again if each.peer != peer]
        return []

    def _done(self, session: WorkerSession, seq: int, key: StoreKey | None = None, number: int = 0) -> list[Outgoing]:
        version, durable = (number, number) if key is None else self._reached(session.rank, [self._entry(key)])
        return [(session.peer, [pack("done", seq=seq, version=version, durable=durable)])]

    def _reached(self, rank: int, units: Sequence[StoredPart]) -> tuple[int, int]:
        """The step up to which a worker's pushes of all of them are in the values, and need not be kept."""
        versions = [self._version(entry, rank) for entry in units]
        durables = [self._durable(entry, rank, version) for entry, version in zip(units, versions, strict=True)]
        return min(versions, default=0), min(durables, default=0)

    def _version(self, entry: StoredPart, rank: int) -> int:
        """The step up to which a worker's pushes are in the value."""
        return entry.version if self.sync else entry.last.get(rank, 0)

    def _has_step(self, entry: StoredPart, rank: int, step: int) -> bool:
        return self._version(entry, rank) >= step and self._within_bound(entry, step)

    def _within_bound(self, entry: StoredPart, step: int) -> bool:
        """Whether a worker that made so many steps of a key need not wait for the slowest."""
        if self.sync or self.staleness is None:
            return True
        return step - min((entry.last.get(rank, 0) for rank in self.live), default=step) <= self.staleness

    def _missing(self, entry: StoredPart, rank: int, step: int) -> Callable[[], str]:
        """What a request waits for, in the words of the moment at which that is asked."""

        def text() -> str:
            made = self._version(entry, rank)
            if made < step:
                absent = self.live - entry.pending.get(made + 1, {}).keys() if self.sync else {rank}
                return f"step {step} of {entry.title} waits for {workers(absent or {rank})}"
            behind = [each for each in self.live if step - entry.last.get(each, 0) > (self.staleness or 0)]
            return f"step {step} of {entry.title} waits for {workers(behind)}, more than {self.staleness} steps behind"

        return text

    def _durable(self, entry: StoredPart, rank: int, version: int) -> int:
        """The step up to which a worker need not keep its pushes."""
        if not self.rules.snapshots:
            return version
        return entry.durable if self.sync else entry.durable_of.get(rank, 0)

    def _value(self, session: WorkerSession, seq: int, entry: StoredPart) -> list[Outgoing]:
        self.counters.pulls += 1
        return self._chunks(session, seq, entry.lend(), [entry])

    def _answer(
        self, session: WorkerSession, seq: int, entry: StoredPart, have: int, compressor: Compressor | None
    ) -> list[Outgoing]:
        self.counters.pulls += 1
        # What was given by a server before a restart, or to another process, says nothing about what is there now.
        known = have if have <= session.given.get(entry.key, -1) else -1
        data, number = entry.answer(session.rank, known, compressor, shared=bool(self.sync))
        session.given[entry.key] = number
        name = compressor.name if compressor is not None and is_payload(data) else "none"
        return self._chunks(session, seq, data, [entry], name)

    def _chunks(
        self, session: WorkerSession, seq: int, data: Tensor, units: Sequence[StoredPart], method: str = "none"
    ) -> list[Outgoing]:
        count, view = chunk_count(data.numel()), data.numpy().data
        self.counters.bytes_out[method] = self.counters.bytes_out.get(method, 0) + data.numel()
        version, durable = self._reached(session.rank, units)
        told = {"seq": seq, "chunks": count, "nbytes": data.numel(), "version": version, "durable": durable}
        return [
            (session.peer, [
                pack("value", chunk=i, **told),
                view[i * CHUNK : (i + 1) * CHUNK],
            ])
            for i in range(count)
        ]  # fmt: skip

    def units(self) -> list[StoredPart]:
        """What has steps of its own."""
        return list(self.entries.values())

    def apart(self) -> None:
        """Let every key be what it would be if nobody had named it together with others."""

    def _unit(self, topic: Topic) -> StoredPart | None:
        """What has steps, by what requests for it wait for."""
        return None if isinstance(topic, tuple) else self.entries.get(topic)

    def _entry(self, key: StoreKey) -> StoredPart:
        """A key alone.

        Raises:
            ConfigError: there is no such key.
        """
        if key not in self.entries:
            raise ConfigError(f"key {key!r} must be initialised before it is used: call init first")
        return self.entries[key]

    def _compression(self, session: WorkerSession, number: int) -> Compression:
        if number not in session.configs:
            raise WireError(f"a push names compression {number}, which was never sent")
        return session.configs[number]

    def _newest(self) -> Updater | None:
        return self.updaters[max(self.updaters)] if self.updaters else None


def workers(ranks: Iterable[int]) -> str:
    """Ranks in words.

    >>> workers([3]), workers({2, 0})
    ('worker 3', 'workers 0, 2')
    """
    names = sorted(ranks)
    return f"worker{'' if len(names) == 1 else 's'} {', '.join(map(str, names))}"


def printable(text: str) -> str:
    r"""For a terminal and a log: nothing in it that moves a cursor or starts a line, and not without end.

    >>> printable("a\x1b[2J\nb")
    'a\\x1b[2J\\nb'
    """
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:500])
