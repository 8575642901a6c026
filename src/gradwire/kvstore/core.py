"""The server without its sockets: messages in, messages out, and time as a number.

    hello -> a session for a rank; another session of the same rank ends the old one
    requests of a session are answered by "seq"; what has to wait (a pull for its step, an init for rank 0's value, a
    barrier for the others) is in a list and answered when what it waits for happens, or with an error when it cannot

Law: whatever arrives, from whomever, the answer is a message or silence, never an exception; a request changes
something only after all of it was checked. A session that sends what the protocol does not allow is closed.
What grows: with the number of workers W, the sessions, and for each key that is being summed up to W payloads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from gradwire.errors import ConfigError, GradwireError, WireError
from gradwire.kvstore.compression import Compression
from gradwire.kvstore.entry import AHEAD, Entry, expected_nbytes, raw
from gradwire.kvstore.keys import StoreKey
from gradwire.kvstore.optimizers import OptimizerConfig, Updater
from gradwire.kvstore.payloads import require_alone
from gradwire.kvstore.protocol import DTYPES, REQUESTS, VERSION, pack, unpack
from gradwire.kvstore.rules import Rules
from gradwire.kvstore.session import Session
from gradwire.kvstore.state import ServerState
from gradwire.kvstore.states import from_bytes, to_bytes
from gradwire.kvstore.waits import Outgoing, Topic, Waiting

__all__ = ["ServerCore"]

SETTINGS = 2 * AHEAD
"""Settings of the optimizer that pushes may name: a learning rate may change in every step."""


class ServerCore(ServerState):
    """One server: sessions and their requests.

    Args:
        rules: how it behaves.
        entries: restored from a snapshot; None: it starts empty.
    """

    def __init__(self, rules: Rules, entries: Iterable[Entry] | None = None) -> None:
        super().__init__(rules, entries)
        self._touched: set[Topic] = set()
        self._barriers: dict[int, set[int]] = {}
        self._passed, self._now = 0, 0.0

    # What the shell calls ----------------------------------------------------------------------------------------

    def receive(self, peer: bytes, frames: Sequence[bytes | memoryview], now: float) -> list[Outgoing]:
        """Take one message; what is to be sent because of it.

        Args:
            peer: who sent it, as the transport names it.
            frames: the header and at most one frame.
            now: seconds, from any start.
        """
        seq, self._now = 0, now
        try:
            op, fields, rest = unpack(frames, REQUESTS)
            seq = fields.get("seq", 0)
            if op == "hello":
                return [*self._hello(peer, now, **fields), *self._progress()]
            session = self._sessions.get(peer)
            if session is None:
                raise WireError("a session starts with hello")
            session.seen = now
            handler = getattr(self, f"_{op}")
            return [*handler(session, rest, **fields), *self._progress()]
        except WireError as error:
            return [self._error(peer, seq, "wire", error), *self._close(peer)]
        except GradwireError as error:
            return [self._error(peer, seq, "config", error)]

    def tick(self, now: float) -> list[Outgoing]:
        """Notice who has been silent for too long; call it about once a second."""
        self._now = now
        silent = [s for s in self._sessions.values() if now - s.seen > self.rules.dead_after]
        gone = [out for session in silent for out in self._lost(session)]
        return [*gone, *self._progress()]

    # Sessions ----------------------------------------------------------------------------------------------------

    def _hello(
        self, peer: bytes, now: float, version: int, rank: int, world: int, sync: bool, session: bytes
    ) -> list[Outgoing]:
        if version != VERSION:
            raise WireError(f"this server speaks version {VERSION} of the protocol, not {version}")
        if world != self.rules.workers or rank >= world:
            raise ConfigError(f"rank {rank} of {world} workers does not fit this server of {self.rules.workers}")
        if self.sync not in (None, sync):
            raise ConfigError(f"the workers must all be {'sync' if self.sync else 'async'} like the first of them")
        self.sync = sync
        old = [each for each in self._sessions.values() if each.rank == rank]
        known = next((each for each in old if each.token == session), None)
        for each in old:
            self._close(each.peer)
        fresh = Session(peer, rank, session, now)
        if known is not None:
            fresh.configs, fresh.barriers, fresh.given = known.configs, known.barriers, known.given
        else:
            self.finished.discard(rank)
            fresh.barriers = self._passed
            for arrived in self._barriers.values():
                arrived.discard(rank)
        self.dead.discard(rank)
        self.left.discard(rank)
        self._sessions[peer] = fresh
        self._touch_all()
        reply = pack("welcome", epoch=self.epoch, rank=rank, world=world, restored=self.restored)
        return [(peer, [reply])]

    def _lost(self, session: Session) -> list[Outgoing]:
        self.dead.add(session.rank)
        self._close(session.peer)
        self._touch_all()
        return [] if self.rules.on_dead_worker == "continue" else self._tell_dead()

    def _tell_dead(self) -> list[Outgoing]:
        """End every wait that only the dead could end."""
        stuck = self._waits.take_stuck()
        return [(w.peer, [pack("error", seq=w.seq, kind="dead", text=f"{self._silence()}: {w.what}")]) for w in stuck]

    # Requests ----------------------------------------------------------------------------------------------------

    def _ping(self, session: Session, rest: list[memoryview]) -> list[Outgoing]:
        return [(session.peer, [pack("pong", dead=sorted(self.dead))])]

    def _init(
        self, session: Session, rest: list[memoryview], seq: int, chunk: int, chunks: int, key: StoreKey,
        shape: list[int], dtype: str, start: int, total: int, sparse: bool,
    ) -> list[Outgoing]:  # fmt: skip
        kind = DTYPES[dtype]
        nbytes = math.prod(shape) * kind.itemsize
        if max([nbytes, *shape]) > self.rules.max_bytes:
            raise ConfigError(f"key {key!r} has {nbytes} bytes, this server takes at most {self.rules.max_bytes}")
        entry, form = self.entries.get(key), (torch.Size(shape), kind, start, total)
        if entry is not None:
            entry.check_same(*form)
        elif len(self.entries) >= self.rules.max_keys:
            raise ConfigError(f"this server keeps at most {self.rules.max_keys} keys")
        if chunks and session.rank == 0 and entry is None:
            data = session.take(seq, chunk, chunks, rest, range(nbytes, nbytes + 1))
            if data is None:
                return []
            value = data.view(kind).view(shape)
            self.entries[key] = Entry(key, value, start, total, sparse)
        elif chunk + 1 < chunks:
            return []
        self._touched.add(key)
        waiting = f"key {key!r} waits for rank 0's value"
        return self._when(
            key, session, seq, waiting, lambda: key in self.entries, partial(self._inited, session, seq, key, form)
        )

    def _inited(self, session: Session, seq: int, key: StoreKey, form: tuple[Any, ...]) -> list[Outgoing]:
        """A worker may have asked before rank 0 said what the key is."""
        try:
            self.entries[key].check_same(*form)
        except ConfigError as error:
            return [self._error(session.peer, seq, "config", error)]
        return self._done(session, seq, key)

    def _config(
        self, session: Session, rest: list[memoryview], seq: int, number: int, config: dict[str, Any]
    ) -> list[Outgoing]:
        try:
            compression = Compression.from_config(config)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"a compression is refused: {error}") from None
        require_alone(compression.push)
        session.configs[number] = compression
        return self._done(session, seq)

    def _optimizer(
        self, session: Session, rest: list[memoryview], seq: int, number: int, name: str, numbers: dict[str, Any]
    ) -> list[Outgoing]:
        config = OptimizerConfig(name, numbers)
        known = self.updaters.get(number)
        if known is not None and known.config != config:
            raise ConfigError(f"optimizer setting {number} is {known.config}, another worker has {config}")
        if known is None:
            before = self.updaters.get(number - 1)
            same = before is not None and before.config.name == name
            self.updaters[number] = before.with_config(config) if same and before is not None else Updater(config)
            self.updaters = {n: each for n, each in self.updaters.items() if n > number - SETTINGS}
            if self.saved_states:
                self.updaters[number].load_state_dict(self.saved_states)
                self.saved_states = {}
        return self._done(session, seq)

    def _push(
        self, session: Session, rest: list[memoryview], seq: int, chunk: int, chunks: int, key: StoreKey, step: int,
        config: int, optimizer: int, rows: int,
    ) -> list[Outgoing]:  # fmt: skip
        entry, compression = self._entry(key), self._compression(session, config)
        if optimizer and optimizer not in self.updaters:
            raise WireError(f"a push names optimizer setting {optimizer}, which was never sent")
        if rows > len(entry.value) if entry.value.dim() else rows >= 0:
            raise WireError(f"a push names {rows} rows of key {key!r}")
        sizes = expected_nbytes(entry, compression, rows)
        extra = 8 * max(rows, 0)
        data = session.take(seq, chunk, chunks, rest, range(sizes.start + extra, sizes.stop + extra))
        if data is None:
            return []
        contribution = entry.contribution(compression, data, rows, optimizer)
        method = compression.push.name if compression.push is not None else "none"
        self.counters.bytes_in[method] = self.counters.bytes_in.get(method, 0) + data.numel()
        self.counters.pushes[method] = self.counters.pushes.get(method, 0) + 1
        if self.sync:
            fresh = entry.offer(session.rank, step, contribution)
            if fresh:
                self.counters.begin(key, step, session.seen)
        else:
            fresh = entry.apply_one(session.rank, step, contribution, self.updaters)
            self.counters.steps += fresh
        self.counters.repeated += not fresh
        self._touched.add(key)
        return self._when(
            key, session, seq, self._missing(entry, session.rank, step), partial(self._within_bound, entry, step),
            lambda: self._done(session, seq, key),
        )  # fmt: skip

    def _pull(self, session: Session, rest: list[memoryview], seq: int, key: StoreKey, step: int) -> list[Outgoing]:
        entry = self._entry(key)
        return self._when_there(session, seq, entry, step, partial(self._value, session, seq, entry))

    def _follow(
        self, session: Session, rest: list[memoryview], seq: int, key: StoreKey, step: int, config: int, have: int
    ) -> list[Outgoing]:
        entry, compressor = self._entry(key), self._compression(session, config).pull
        answer = partial(self._answer, session, seq, entry, have, compressor)
        return self._when_there(session, seq, entry, step, answer)

    def _rows(
        self, session: Session, rest: list[memoryview], seq: int, chunk: int, chunks: int, key: StoreKey, step: int
    ) -> list[Outgoing]:
        entry = self._entry(key)
        data = session.take(seq, chunk, chunks, rest, range(8 * self.rules.max_keys))
        if data is None:
            return []
        if data.numel() % 8:
            raise WireError("rows are int64")
        rows = data.view(torch.int64)
        count = len(entry.value) if entry.value.dim() else 0
        if rows.numel() and not (int(rows.min()) >= 0 and int(rows.max()) < count):
            raise ConfigError(f"key {key!r} has the rows 0 to {count - 1}")

        def answer() -> list[Outgoing]:
            self.counters.pulls += 1
            return self._chunks(session, seq, raw(entry.value[rows]), entry)

        return self._when_there(session, seq, entry, step, answer)

    def _staleness(self, session: Session, rest: list[memoryview], seq: int, steps: int) -> list[Outgoing]:
        if self.sync:
            raise ConfigError("a bound on staleness is for dist_async: in dist_sync nobody is ahead")
        if self.staleness not in (None, steps):
            raise ConfigError(f"staleness is {self.staleness} on this server, worker {session.rank} asks for {steps}")
        self.staleness = steps
        return self._done(session, seq)

    def _barrier(self, session: Session, rest: list[memoryview], seq: int, number: int) -> list[Outgoing]:
        number += session.barriers
        arrived = self._barriers.setdefault(number, set())
        arrived.add(session.rank)
        self._barriers = {n: ranks for n, ranks in self._barriers.items() if n > number - 2}

        def answer() -> list[Outgoing]:
            self._passed = max(self._passed, number)
            return self._done(session, seq)

        topic = ("barrier", number)
        self._touched.add(topic)
        missing = f"barrier {number} waits for worker {', '.join(map(str, sorted(self.live - arrived)))}"
        return self._when(topic, session, seq, missing, lambda: self.live <= arrived, answer)

    def _finish(self, session: Session, rest: list[memoryview], seq: int) -> list[Outgoing]:
        self.finished.add(session.rank)
        self._touch_all()
        return self._done(session, seq)

    def _states(self, session: Session, rest: list[memoryview], seq: int) -> list[Outgoing]:
        updater = self._newest()
        if updater is None:
            raise ConfigError("a store has optimizer states after set_optimizer, and not before")
        data = torch.frombuffer(bytearray(to_bytes(updater.state_dict(), updater.config)), dtype=torch.uint8)
        return self._chunks(session, seq, data, None)

    def _restore(self, session: Session, rest: list[memoryview], seq: int, chunk: int, chunks: int) -> list[Outgoing]:
        data = session.take(seq, chunk, chunks, rest, range(self.rules.max_bytes))
        if data is None:
            return []
        updater = self._newest()
        if updater is None:
            raise ConfigError("optimizer states are loaded after set_optimizer, and not before")
        states, _ = from_bytes(data.numpy().tobytes())
        updater.load_state_dict({key: state for key, state in states.items() if key in self.entries})
        return self._done(session, seq)

    # Waiting -----------------------------------------------------------------------------------------------------

    def _when_there(
        self, session: Session, seq: int, entry: Entry, step: int, answer: Callable[[], list[Outgoing]]
    ) -> list[Outgoing]:
        """Answer when a worker's own step is in the value, and not too far ahead of the others."""
        ready, missing = partial(self._has_step, entry, session.rank, step), self._missing(entry, session.rank, step)
        return self._when(entry.key, session, seq, missing, ready, answer)

    def _when(
        self, topic: Topic, session: Session, seq: int, what: str, ready: Callable[[], bool],
        answer: Callable[[], list[Outgoing]],
    ) -> list[Outgoing]:  # fmt: skip
        if ready():
            return answer()
        if self.dead and self.rules.on_dead_worker == "error":
            return [(session.peer, [pack("error", seq=seq, kind="dead", text=f"{self._silence()}: {what}")])]
        self._waits.add(topic, Waiting(session.peer, seq, what, ready, answer))
        return []

    def _touch_all(self) -> None:
        """Who lives has changed: any step or wait may be complete."""
        self._touched |= self._waits.topics() | {key for key, entry in self.entries.items() if entry.pending}

    def _progress(self) -> list[Outgoing]:
        """Of what was touched: apply steps that are complete, and answer those who waited for that."""
        answers: list[Outgoing] = []
        touched, self._touched = self._touched, set()
        for topic in touched:
            entry = None if isinstance(topic, tuple) else self.entries.get(topic)
            while self.sync and entry is not None and (pushes := entry.ready(self.live)) is not None:
                entry.apply(pushes, self.updaters)
                self.counters.complete(entry.key, entry.version, self._now)
            answers += [out for each in self._waits.take_ready(topic) for out in each.answer()]
        return answers
