"""Members of a run: sessions with their incomplete messages, ranks, and barriers.

    hello, another token   taken in where the rank is free, or its session has been silent or cannot be reached
    hello, the same token  the same process after a cut cable: it goes on with what it had told the server
    silence                the rank counts as dead; the same process may come back, another one may take its place

A rank with a key of its own (CURVE) belongs to that key. Without keys whoever can reach the server may take a free
place, but not that of a worker that is heard of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.buffers import lease
from gradwire.kvstore.protocol.compression import OFF, Compression
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.messages import CHUNK, MAX_OPEN, chunk_count
from gradwire.kvstore.server.key_list import KeyList
from gradwire.kvstore.server.pending import RequestQueue
from gradwire.kvstore.server.rules import Rules

__all__ = ["MAX_CONFIGS", "MAX_UNSAVED", "Barriers", "Members", "StrangerError", "WorkerSession", "workers"]

MAX_CONFIGS = 512
"""Compressions that pushes may name: a threshold may change in every step."""


@dataclass
class Assembly:
    """A message that has arrived in part."""

    data: Tensor
    missing: set[int]


@dataclass
class WorkerSession:
    """The session of one worker process.

    Args:
        peer: name of the worker in the transport.
        rank: rank among the workers.
        token: token that the process chose; another process has another one.
        seen: time at which something last came from it, in seconds.
        configs: compressions of the worker, by number; 0 is none.
        barriers: number of barriers that were passed before it came: its own first one is the one after them.
        joined: true: its rank had another process before, so its settings are numbered anew.
        reachable: true: nothing that was sent to it has failed since it was heard of.
        given: number of the replica of a key that the newest compressed answer led to.
        lists: lists of keys that it names together, by its numbers.
    """

    peer: bytes
    rank: int
    token: bytes
    seen: float
    configs: dict[int, Compression] = field(default_factory=lambda: {0: OFF})
    barriers: int = 0
    joined: bool = False
    reachable: bool = True
    given: dict[StoreKey, int] = field(default_factory=dict)
    lists: dict[int, KeyList] = field(default_factory=dict)
    open: dict[int, Assembly] = field(default_factory=dict)

    def compression(self, number: int) -> Compression:
        """Find a compression by its number.

        Raises:
            WireError: there is no such compression.
        """
        if number not in self.configs:
            raise WireError(f"a push names compression {number}, which was never sent")
        return self.configs[number]

    def key_list(self, number: int) -> KeyList:
        """Find a list of keys by its number.

        Raises:
            WireError: there is no such list.
        """
        if number not in self.lists:
            raise WireError(f"a request names list {number} of keys, which was never sent")
        return self.lists[number]

    def declare(self, number: int, compression: Compression) -> None:
        """Register a compression under a number, and forget the oldest of too many."""
        self.configs[number] = compression
        if len(self.configs) > MAX_CONFIGS:
            del self.configs[min(n for n in self.configs if n)]

    def take(self, seq: int, chunk: int, chunks: int, rest: list[memoryview], sizes: range) -> Tensor | None:
        """Take a piece of a message; return the whole message, uint8, when its last piece is here.

        Args:
            seq: number of the message.
            chunk: place of the piece.
            chunks: pieces of the message.
            rest: the frame.
            sizes: bytes that the message may have.

        Raises:
            WireError: pieces that do not make a message of such a size.
        """
        nbytes = rest[0].nbytes if rest else 0
        if chunk >= chunks or nbytes > CHUNK or (chunk + 1 < chunks and nbytes != CHUNK):
            raise WireError(f"piece {chunk} of {chunks} has {nbytes} bytes")
        most = sizes.stop - 1
        if not chunk_count(sizes.start) <= chunks <= chunk_count(most):
            raise WireError(f"a message of {sizes.start} to {most} bytes does not have {chunks} pieces")
        assembly = self._assembly(seq, chunks, min(chunks * CHUNK, most))
        at = chunk * CHUNK
        if at + nbytes > assembly.data.numel():
            raise WireError(f"piece {chunk} of {chunks} ends at byte {at + nbytes}, the message at {most}")
        if nbytes:
            np.copyto(assembly.data.numpy()[at : at + nbytes], np.frombuffer(rest[0], np.uint8))
        if chunk + 1 == chunks:
            assembly.data = assembly.data[: at + nbytes]
        assembly.missing.discard(chunk)
        if assembly.missing:
            return None
        del self.open[seq]
        if assembly.data.numel() not in sizes:
            raise WireError(f"a message has {assembly.data.numel()} bytes, not {sizes.start} to {most}")
        return assembly.data

    def _assembly(self, seq: int, chunks: int, nbytes: int) -> Assembly:
        if seq not in self.open:
            if len(self.open) >= MAX_OPEN:
                raise WireError(f"a session has at most {MAX_OPEN} messages in pieces at a time")
            try:
                data = lease((nbytes,), torch.uint8)
            except (RuntimeError, MemoryError):
                raise ConfigError(f"this server has no room for a message of {nbytes} bytes") from None
            self.open[seq] = Assembly(data, set(range(chunks)))
        return self.open[seq]


TAKEN = 3.0
"""Seconds of silence in which a session that can be reached keeps its rank; workers ping every second."""


class StrangerError(WireError):
    """A request came from a process without a session. A worker then introduces itself, and sends its open requests
    again.
    """


class Members:
    """A server's sessions, and the ranks that are dead, have finished or have left.

    Args:
        rules: settings of the server's behaviour.
        pending: waiting requests, which are released by workers that go.
    """

    def __init__(self, rules: Rules, pending: RequestQueue) -> None:
        self.rules, self._pending = rules, pending
        self.dead: set[int] = set()
        self.finished: set[int] = set()
        self.left: set[int] = set()
        self.changed = False
        """True: a worker came or went, so any step or wait may be complete; the core looks, and sets it to false."""
        self.offsets: dict[bytes, int] = {}
        """Barriers passed before each process came that the server knew when its snapshot was made, by token."""
        self._sessions: dict[bytes, WorkerSession] = {}
        self._lost: dict[int, WorkerSession] = {}
        self._seen: set[int] = set()

    def __len__(self) -> int:
        """Count the workers that are connected."""
        return len(self._sessions)

    @property
    def live(self) -> set[int]:
        """The ranks whose pushes a step waits for."""
        gone = self.finished | (self.dead if self.rules.on_dead_worker == "continue" else set())
        return set(range(self.rules.workers)) - gone

    def sessions(self) -> list[WorkerSession]:
        """The sessions that exist, and those that may come back."""
        return [*self._sessions.values(), *self._lost.values()]

    def knows(self, peer: bytes) -> bool:
        """Return whether a process has a session."""
        return peer in self._sessions

    def unreachable(self, peer: bytes) -> None:
        """Note that a message could not be sent to a worker: its connection is gone, and its rank may be taken."""
        if peer in self._sessions:
            self._sessions[peer].reachable = False

    def session(self, peer: bytes, now: float) -> WorkerSession:
        """Find the session of a worker that has introduced itself, and note that it is alive.

        Raises:
            StrangerError: the worker has not introduced itself.
        """
        session = self._sessions.get(peer)
        if session is None:
            session = next((each for each in self._lost.values() if each.peer == peer), None)
            if session is None:
                raise StrangerError("a session starts with hello")
            # Silent for long, as a process that was stopped, and never cut off: it goes on.
            self._enter(session)
        session.seen, session.reachable = now, True
        return session

    def check_place(self, owner: int | None, rank: int, world: int) -> None:
        """Refuse a process that does not belong to this run.

        Raises:
            ConfigError: a rank or a number of workers that does not fit, or a rank that another key owns.
        """
        if world != self.rules.workers or rank >= world:
            raise ConfigError(
                f"rank {rank} of {world} workers does not fit this server of {self.rules.workers}: give it as many "
                "workers (--workers) as the environment of the workers says"
            )
        if owner not in (None, rank):
            raise ConfigError(
                f"rank {rank} has a key of its own, this is the key of worker {owner}: GRADWIRE_KEYS must be the "
                f"folder worker-{rank} of `gradwire keygen`, or the one around it"
            )

    def holder(self, peer: bytes, rank: int, token: bytes, now: float) -> WorkerSession | None:
        """Find the session of another process that has a rank and was heard of lately."""
        if self._known(rank, token) is not None:
            return None
        those = (each for each in self._of(rank) if each.peer != peer)
        return next((each for each in those if each.reachable and now - each.seen < TAKEN), None)

    def take_in(self, peer: bytes, rank: int, token: bytes, now: float) -> tuple[WorkerSession, bool]:
        """Give a rank to a process; return its session, and whether the process is a new one for this rank."""
        known, fresh = self._known(rank, token), WorkerSession(peer, rank, token, now)
        for each in self._of(rank):
            self.close(each.peer)
        if known is not None:
            fresh.configs, fresh.barriers, fresh.given = known.configs, known.barriers, known.given
            fresh.joined, fresh.lists = known.joined, known.lists
        else:
            fresh.joined = rank in self._seen
            self.finished.discard(rank)
        self._enter(fresh)
        return fresh, known is None

    def finish(self, rank: int) -> None:
        """Note that a worker pushes no more."""
        self.finished.add(rank)
        self.changed = True

    def leave(self, session: WorkerSession) -> None:
        """Note that a worker closes its connection: it has left if it said ``finish`` before, else
        it may come again.
        """
        if session.rank in self.finished:
            self.left.add(session.rank)
            self.close(session.peer)

    def close(self, peer: bytes) -> None:
        """Close a session, also that of a worker that does not read its messages."""
        if self._sessions.pop(peer, None) is not None:
            self._pending.drop(peer)

    def silent(self, now: float) -> list[WorkerSession]:
        """Find the ranks that have been silent for too long."""
        return [each for each in self._sessions.values() if now - each.seen > self.rules.dead_after]

    def lose(self, session: WorkerSession) -> None:
        """Declare a worker dead."""
        self.dead.add(session.rank)
        self.close(session.peer)
        self._lost[session.rank] = session
        self.changed = True

    def silence(self) -> str:
        """Say in words which workers are dead."""
        have = "has" if len(self.dead) == 1 else "have"
        return f"{workers(self.dead)} {have} not been heard of for {self.rules.dead_after:g} s"

    def _of(self, rank: int) -> list[WorkerSession]:
        return [each for each in self._sessions.values() if each.rank == rank]

    def _known(self, rank: int, token: bytes) -> WorkerSession | None:
        before = [*self._of(rank), *([self._lost[rank]] if rank in self._lost else [])]
        return next((each for each in before if each.token == token), None)

    def _enter(self, session: WorkerSession) -> None:
        self._seen.add(session.rank)
        self._lost.pop(session.rank, None)
        self.dead.discard(session.rank)
        self.left.discard(session.rank)
        self._sessions[session.peer] = session
        self.changed = True


MAX_UNSAVED = 2**16
"""Barriers that workers may have passed between a snapshot and the end of the server that made it."""


class Barriers:
    """Barriers by their numbers: which worker has come to which, and which are passed.

    Args:
        pending: requests that wait at barriers.
    """

    def __init__(self, pending: RequestQueue) -> None:
        self.passed = 0
        self._pending = pending
        self._arrived: dict[int, set[int]] = {}
        self._saved, self._unheard = 0, frozenset[int]()

    def restore(self, passed: int, ranks: Iterable[int]) -> None:
        """Continue from a snapshot: workers may have passed more barriers since, and each says so when it comes.

        Args:
            passed: barriers that were behind all workers when the snapshot was made.
            ranks: ranks of all workers.
        """
        self.passed = self._saved = passed
        self._unheard = frozenset(ranks)

    def arrive(self, rank: int, number: int) -> set[int]:
        """Note that a worker is at a barrier; return all workers that are.

        Raises:
            WireError: the number is not the next one; or it is the first that a worker names after a restart, and more
                than ``MAX_UNSAVED`` away from those in the snapshot.
        """
        if rank in self._unheard:
            if number > self._saved + MAX_UNSAVED:
                raise WireError(
                    f"worker {rank} is at barrier {number}, the server's snapshot at barrier {self._saved}: they can "
                    f"be at most {MAX_UNSAVED} apart; start the server from the newest snapshot of this run"
                )
            self._unheard -= {rank}
            # A worker at a barrier has passed those before it.
            self.pass_to(number - 1)
        if number > self.passed + 1:
            raise WireError(f"barrier {number} is not the next one, {self.passed + 1}")
        arrived = self._arrived.setdefault(number, set())
        arrived.add(rank)
        self._arrived = {n: ranks for n, ranks in self._arrived.items() if n > number - 2}
        return arrived

    def pass_to(self, number: int) -> None:
        """Mark barriers up to this one as passed by all workers."""
        if number > self.passed:
            self.passed = number
            self._pending.touch(*(("barrier", each) for each in self._arrived if each <= number))

    def forget(self, rank: int) -> None:
        """Forget the barriers of a rank that another process has taken."""
        for arrived in self._arrived.values():
            arrived.discard(rank)


def workers(ranks: Iterable[int]) -> str:
    """Name ranks in words.

    >>> workers([3]), workers({2, 0})
    ('worker 3', 'workers 0, 2')
    """
    names = sorted(ranks)
    return f"worker{'' if len(names) == 1 else 's'} {', '.join(map(str, names))}"
