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
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from gradwire.errors import ConfigError, GradwireError, WireError
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.messages import CHUNK, DTYPES, REQUESTS, Outgoing, pack, unpack
from gradwire.kvstore.protocol.optimizer_states import from_bytes, to_bytes
from gradwire.kvstore.protocol.optimizers import OptimizerConfig, Updater
from gradwire.kvstore.protocol.payloads import require_alone
from gradwire.kvstore.server.joint_requests import ServerJoints
from gradwire.kvstore.server.membership import StrangerError
from gradwire.kvstore.server.parts import AHEAD, StoredPart, expected_nbytes, raw
from gradwire.kvstore.server.session import WorkerSession
from gradwire.kvstore.server.state import workers
from gradwire.kvstore.server.waiting import Topic, Waiting

__all__ = ["ServerCore"]

SETTINGS = 2 * AHEAD
"""Settings of the optimizer that pushes may name: a learning rate may change in every step."""


class ServerCore(ServerJoints):
    """One server: sessions and their requests.

    Args:
        rules: how it behaves.
        entries: restored from a snapshot; None: it starts empty.
    """

    # What the shell calls ----------------------------------------------------------------------------------------

    def receive(
        self, peer: bytes, frames: Sequence[bytes | memoryview], now: float, owner: int | None = None
    ) -> list[Outgoing]:
        """Take one message; what is to be sent because of it.

        Args:
            peer: who sent it, as the transport names it.
            frames: the header and at most one frame.
            now: seconds, from any start.
            owner: the rank whose key the sender has; None: keys are not used, or are nobody's alone.
        """
        seq, self._now = 0, now
        try:
            op, fields, rest = unpack(frames, REQUESTS)
            seq = fields.get("seq", 0)
            if op == "hello":
                return [*self._hello(peer, now, owner, **fields), *self._progress()]
            session = self._session(peer, now)
            handler = getattr(self, f"_{op}")
            return [*handler(session, rest, **fields), *self._progress()]
        except StrangerError as error:
            return [self._error(peer, seq, "hello", error)]
        except WireError as error:
            return [self._error(peer, seq, "wire", error), *self._close(peer)]
        except GradwireError as error:
            return [self._error(peer, seq, "config", error)]
        except Exception as error:
            # Of a message that got through all checks and should not have: it must not end the server for everybody.
            traceback.print_exc()
            return [self._error(peer, seq, "wire", WireError(type(error).__name__)), *self._close(peer)]

    def tick(self, now: float) -> list[Outgoing]:
        """Notice who has been silent for too long; call it about once a second."""
        self._now = now
        silent = [s for s in self._sessions.values() if now - s.seen > self.rules.dead_after]
        gone = [out for session in silent for out in self._lose(session)]
        return [*gone, *self._progress()]

    # Requests ----------------------------------------------------------------------------------------------------

    def _ping(self, session: WorkerSession, rest: list[memoryview]) -> list[Outgoing]:
        return [(session.peer, [self._pong()])]

    def _init(
        self, session: WorkerSession, rest: list[memoryview], seq: int, chunk: int, chunks: int, key: StoreKey,
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
        elif self.stored + nbytes > self.rules.max_memory:
            raise ConfigError(f"this server keeps at most {self.rules.max_memory} bytes, key {key!r} has {nbytes}")
        if chunks and session.rank == 0 and entry is None:
            data = session.take(seq, chunk, chunks, rest, range(nbytes, nbytes + 1))
            if data is None:
                return []
            value = data.view(kind).view(shape)
            self.entries[key] = StoredPart(key, value, start, total, sparse)
            self.stored += nbytes
        elif chunk + 1 < chunks:
            return []
        self._touched.add(key)
        return self._when(
            key, session, seq, lambda: f"key {key!r} waits for worker 0's value", lambda: key in self.entries,
            partial(self._inited, session, seq, key, form),
        )  # fmt: skip

    def _inited(self, session: WorkerSession, seq: int, key: StoreKey, form: tuple[Any, ...]) -> list[Outgoing]:
        """A worker may have asked before rank 0 said what the key is."""
        try:
            self.entries[key].check_same(*form)
        except ConfigError as error:
            return [self._error(session.peer, seq, "config", error)]
        return self._done(session, seq, key)

    def _config(
        self, session: WorkerSession, rest: list[memoryview], seq: int, number: int, config: dict[str, Any]
    ) -> list[Outgoing]:
        try:
            compression = Compression.from_config(config)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"a compression is refused: {error}") from None
        require_alone(compression.push)
        session.declare(number, compression)
        return self._done(session, seq)

    def _optimizer(
        self, session: WorkerSession, rest: list[memoryview], seq: int, number: int, name: str, numbers: dict[str, Any]
    ) -> list[Outgoing]:
        config, newest = OptimizerConfig(name, numbers), self._newest()
        if newest is not None and session.joined:
            number = self._joined_number(config)
        elif newest is not None and number > max(self.updaters) + 1:
            raise WireError(f"optimizer setting {number} is not the next one, {max(self.updaters) + 1}")
        known = self.updaters.get(number)
        if known is not None and known.config != config:
            raise ConfigError(
                f"set_optimizer must get the same values from all workers: another worker's call {number} gave "
                f"{known.config}, this one's {config}"
            )
        if known is None:
            same = newest is not None and newest.config.name == name
            self.updaters[number] = newest.with_config(config) if same and newest is not None else Updater(config)
            oldest = max(self.updaters) - SETTINGS
            self.updaters = {n: each for n, each in self.updaters.items() if n > oldest}
            if self.saved_states:
                self._load(self.updaters[number], self.saved_states)
                self.saved_states = {}
        return self._done(session, seq, number=number)

    def _joined_number(self, config: OptimizerConfig) -> int:
        """A process that came later counts its settings from 1; here they go on from those that there are."""
        same = [number for number, each in self.updaters.items() if each.config == config]
        return max(same, default=max(self.updaters) + 1)

    def _push(
        self, session: WorkerSession, rest: list[memoryview], seq: int, chunk: int, chunks: int, key: StoreKey,
        step: int, config: int, optimizer: int, rows: int,
    ) -> list[Outgoing]:  # fmt: skip
        entry, compression = self._entry(key), self._compression(session, config)
        self._check_optimizer(optimizer)
        if rows > len(entry.value) if entry.value.dim() else rows >= 0:
            raise WireError(f"a push names {rows} rows of key {key!r}")
        sizes = expected_nbytes(entry, compression, rows)
        extra = 8 * max(rows, 0)
        data = session.take(seq, chunk, chunks, rest, range(sizes.start + extra, sizes.stop + extra))
        if data is None:
            return []
        contribution = entry.contribution(compression, data, rows, optimizer)
        method = compression.push.name if compression.push is not None else "none"
        self._take_push(session, entry, step, contribution, method)
        return self._when(
            key, session, seq, self._missing(entry, session.rank, step), partial(self._within_bound, entry, step),
            lambda: self._done(session, seq, key),
        )  # fmt: skip

    def _pull(
        self, session: WorkerSession, rest: list[memoryview], seq: int, key: StoreKey, step: int
    ) -> list[Outgoing]:
        entry = self._entry(key)
        return self._when_there(session, seq, entry, step, partial(self._value, session, seq, entry))

    def _follow(
        self, session: WorkerSession, rest: list[memoryview], seq: int, key: StoreKey, step: int, config: int, have: int
    ) -> list[Outgoing]:
        entry, compressor = self._entry(key), self._compression(session, config).pull
        answer = partial(self._answer, session, seq, entry, have, compressor)
        return self._when_there(session, seq, entry, step, answer)

    def _rows(
        self,
        session: WorkerSession,
        rest: list[memoryview],
        seq: int,
        chunk: int,
        chunks: int,
        key: StoreKey,
        step: int,
    ) -> list[Outgoing]:
        entry = self._entry(key)
        data = session.take(seq, chunk, chunks, rest, range(8 * self.rules.max_keys))
        if data is None:
            return []
        if data.numel() % 8:
            raise WireError("rows are int64")
        rows = data.view(torch.int64)
        count = len(entry.value) if entry.value.dim() else 0
        if len(rows) > count:
            raise ConfigError(f"key {key!r} has {count} rows, {len(rows)} were asked for")
        if rows.numel() and not (int(rows.min()) >= 0 and int(rows.max()) < count):
            raise ConfigError(f"row_ids of key {key!r} must be in [0, {count})")

        def answer() -> list[Outgoing]:
            self.counters.pulls += 1
            return self._chunks(session, seq, raw(entry.value[rows]), [entry])

        return self._when_there(session, seq, entry, step, answer)

    def _staleness(self, session: WorkerSession, rest: list[memoryview], seq: int, steps: int) -> list[Outgoing]:
        if self.sync:
            raise ConfigError("a bound on staleness is for dist_async: in dist_sync nobody is ahead")
        if self.staleness not in (None, steps):
            raise ConfigError(
                f"staleness must be the same on all workers and servers: it is {self.staleness} here, worker "
                f"{session.rank} asks for {steps}"
            )
        self.staleness = steps
        return self._done(session, seq)

    def _barrier(self, session: WorkerSession, rest: list[memoryview], seq: int, number: int) -> list[Outgoing]:
        number += session.barriers
        if self.restored:
            # Nobody told this server which were passed: who comes to one has passed those before it.
            self._pass(number - 1)
        if number > self._passed + 1:
            raise WireError(f"barrier {number} is not the next one, {self._passed + 1}")
        arrived = self._barriers.setdefault(number, set())
        arrived.add(session.rank)
        self._barriers = {n: ranks for n, ranks in self._barriers.items() if n > number - 2}

        def ready() -> bool:
            return number <= self._passed or self.live <= arrived

        def answer() -> list[Outgoing]:
            self._pass(number)
            return self._done(session, seq)

        topic = ("barrier", number)
        self._touched.add(topic)
        return self._when(
            topic, session, seq, lambda: f"barrier {number} waits for {workers(self.live - arrived)}", ready, answer
        )

    def _pass(self, number: int) -> None:
        """Barriers up to this one are behind all workers."""
        if number > self._passed:
            self._passed = number
            self._touched |= {("barrier", each) for each in self._barriers if each <= number}

    def _why(self, session: WorkerSession, rest: list[memoryview], seq: int, of: int) -> list[Outgoing]:
        """Say what another request of this worker waits for: its deadline has passed."""
        text = self._waits.reason(session.peer, of)
        return self._chunks(session, seq, torch.frombuffer(bytearray(f" {text}".encode()), dtype=torch.uint8), [])

    def _finish(self, session: WorkerSession, rest: list[memoryview], seq: int) -> list[Outgoing]:
        self.finished.add(session.rank)
        self._touch_all()
        return self._done(session, seq)

    def _states(self, session: WorkerSession, rest: list[memoryview], seq: int) -> list[Outgoing]:
        updater = self._newest()
        if updater is None:
            raise ConfigError("a store has optimizer states after set_optimizer, and not before")
        data = torch.frombuffer(bytearray(to_bytes(updater.state_dict(), updater.config)), dtype=torch.uint8)
        return self._chunks(session, seq, data, [])

    def _restore(
        self, session: WorkerSession, rest: list[memoryview], seq: int, chunk: int, chunks: int
    ) -> list[Outgoing]:
        updater = self._newest()
        if updater is None:
            raise ConfigError("optimizer states are loaded after set_optimizer, and not before")
        # The optimizers keep two or three tensors of a value's size, and some numbers.
        most = 4 * self.stored + 1024 * len(self.entries) + CHUNK
        data = session.take(seq, chunk, chunks, rest, range(most + 1))
        if data is None:
            return []
        states, _ = from_bytes(data.numpy().tobytes())
        self._load(updater, states)
        return self._done(session, seq)

    def _load(self, updater: Updater, states: Mapping[StoreKey, Mapping[str, Any]]) -> None:
        for key, state in states.items():
            updater.config.check_state(key, state, self._entry(key).value)
        updater.load_state_dict(states)

    # Waiting -----------------------------------------------------------------------------------------------------

    def _when_there(
        self, session: WorkerSession, seq: int, entry: StoredPart, step: int, answer: Callable[[], list[Outgoing]]
    ) -> list[Outgoing]:
        """Answer when a worker's own step is in the value, and not too far ahead of the others."""
        ready, missing = partial(self._has_step, entry, session.rank, step), self._missing(entry, session.rank, step)
        return self._when(entry.key, session, seq, missing, ready, answer)

    def _when(
        self, topic: Topic, session: WorkerSession, seq: int, what: Callable[[], str], ready: Callable[[], bool],
        answer: Callable[[], list[Outgoing]],
    ) -> list[Outgoing]:  # fmt: skip
        if ready():
            return answer()
        if self.dead and self.rules.on_dead_worker == "error":
            return [(session.peer, [pack("error", seq=seq, kind="dead", text=f"{self._silence()}: {what()}")])]
        self._waits.add(topic, Waiting(session.peer, seq, what, ready, answer))
        return []

    def _progress(self) -> list[Outgoing]:
        """Apply steps that are complete, and answer those who waited for that; an answer may put keys apart."""
        out: list[Outgoing] = []
        while self._touched or self._again:
            out += self._progress_once()
        return out

    def _progress_once(self) -> list[Outgoing]:
        touched, self._touched = self._touched, set()
        live = self.live
        # All steps first: a pull of many keys would find one after the other.
        for topic in touched:
            entry = self._unit(topic)
            while self.sync and entry is not None and (pushes := entry.ready(live)) is not None:
                entry.apply(pushes, self.updaters)
                self.counters.complete(entry.topic, entry.version, self._now, entry.count)
        again, self._again = self._again, []
        out = [out for each in again for out in each.answer()]
        return out + [out for topic in touched for each in self._waits.take_ready(topic) for out in each.answer()]
