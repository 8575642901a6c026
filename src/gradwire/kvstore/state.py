"""What a server knows, and how it says it; who asks, and when, is the core's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.compression import Compression
from gradwire.kvstore.entry import Entry
from gradwire.kvstore.keys import StoreKey
from gradwire.kvstore.optimizers import Updater
from gradwire.kvstore.protocol import CHUNK, chunk_count, pack
from gradwire.kvstore.rules import Counters, Rules
from gradwire.kvstore.session import Session
from gradwire.kvstore.waits import Outgoing, Waits

__all__ = ["ServerState", "raw"]


class ServerState:
    """Values, optimizers, and who is there.

    Args:
        rules: how the server behaves.
        entries: restored from a snapshot; None: it starts empty.
    """

    def __init__(self, rules: Rules, entries: Iterable[Entry] | None = None) -> None:
        self.rules = rules
        self.epoch = os.urandom(16)
        self.restored = entries is not None
        self.entries: dict[StoreKey, Entry] = {entry.key: entry for entry in entries or ()}
        self.updaters: dict[int, Updater] = {}
        self.saved_states: dict[StoreKey, dict[str, Any]] = {}
        self.counters = Counters()
        self.sync: bool | None = None
        self.dead: set[int] = set()
        self.finished: set[int] = set()
        self.left: set[int] = set()
        self._sessions: dict[bytes, Session] = {}
        self._waits = Waits()
        self._answers: dict[StoreKey, tuple[int, list[Any]]] = {}

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
        for entry in self.entries.values():
            entry.durable = entry.version

    def _done(self, session: Session, seq: int, key: StoreKey | None = None) -> list[Outgoing]:
        entry = None if key is None else self.entries[key]
        version = 0 if entry is None else self._version(entry, session.rank)
        return [(session.peer, [pack("done", seq=seq, version=version, durable=self._durable(entry, version))])]

    def _version(self, entry: Entry, rank: int) -> int:
        """The step up to which a worker's pushes are in the value."""
        return entry.version if self.sync else entry.last.get(rank, 0)

    def _durable(self, entry: Entry | None, version: int) -> int:
        """The step up to which a worker need not keep its pushes."""
        return version if entry is None or not self.rules.snapshots else entry.durable

    def _value(self, session: Session, seq: int, entry: Entry) -> list[Outgoing]:
        self.counters.pulls += 1
        version, data = self._answers.get(entry.key, (-1, []))
        if version != entry.version:
            # Made once for all workers. A copy: the value changes while a slow one still receives it.
            data = [raw(entry.value).clone()]
            self._answers[entry.key] = (entry.version, data)
        return self._chunks(session, seq, data[0], entry)

    def _chunks(self, session: Session, seq: int, data: Tensor, entry: Entry | None) -> list[Outgoing]:
        count, view = chunk_count(data.numel()), data.numpy().data
        self.counters.bytes_out += data.numel()
        version = 0 if entry is None else self._version(entry, session.rank)
        told = {"version": version, "durable": self._durable(entry, version)}
        return [
            (session.peer, [
                pack("value", seq=seq, chunk=i, chunks=count, nbytes=data.numel(), **told),
                view[i * CHUNK : (i + 1) * CHUNK],
            ])
            for i in range(count)
        ]  # fmt: skip

    def _entry(self, key: StoreKey) -> Entry:
        if key not in self.entries:
            raise ConfigError(f"key {key!r} must be initialised before it is used: call init first")
        return self.entries[key]

    def _compression(self, session: Session, number: int) -> Compression:
        if number not in session.configs:
            raise WireError(f"a push names compression {number}, which was never sent")
        return session.configs[number]

    def _newest(self) -> Updater | None:
        return self.updaters[max(self.updaters)] if self.updaters else None


def raw(value: Tensor) -> Tensor:
    """The bytes of a tensor, without a copy where it is contiguous."""
    return value.contiguous().view(-1).view(torch.uint8)
