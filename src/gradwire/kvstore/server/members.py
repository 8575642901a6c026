"""Members of a run: one session for each rank, its state, and barriers.

A session belongs to a process, which has chosen a token. Its states and what leads from one to another are a table,
``MOVES``:

    live       connected, and not silent
    cut        not connected, or silent: its requests are dropped; the process may come back, another one may come
    dead       silent for too long, and all that it pushed is in the file
    finished   it pushes no more, and is still there
    left       it pushes no more, and is gone

Invariants:
    * A process that comes back, from any state, introduces itself, and repeats all requests that were not answered.
    * A rank with a key of its own (CURVE) belongs to that key. Without keys any process that can reach the server may
      take a free rank, but not that of a worker that is not silent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

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

__all__ = ["MAX_CONFIGS", "Barriers", "Members", "State", "StrangerError", "WorkerSession", "workers"]

MAX_CONFIGS = 512
"""Compressions that pushes may name: a threshold may change in every step."""


class State(Enum):
    """The state of a session."""

    LIVE = "live"
    CUT = "cut"
    DEAD = "dead"
    FINISHED = "finished"
    LEFT = "left"


MOVES = {
    (State.LIVE, "come"): State.LIVE,
    (State.LIVE, "cut"): State.CUT,
    (State.LIVE, "silent"): State.CUT,
    (State.LIVE, "finish"): State.FINISHED,
    (State.LIVE, "leave"): State.LIVE,
    (State.CUT, "come"): State.LIVE,
    (State.CUT, "cut"): State.CUT,
    (State.CUT, "silent"): State.CUT,
    (State.CUT, "saved"): State.DEAD,
    (State.DEAD, "await"): State.CUT,
    (State.FINISHED, "come"): State.FINISHED,
    (State.FINISHED, "await"): State.CUT,
    (State.FINISHED, "cut"): State.FINISHED,
    (State.FINISHED, "finish"): State.FINISHED,
    (State.FINISHED, "silent"): State.LEFT,
    (State.FINISHED, "leave"): State.LEFT,
    (State.LEFT, "come"): State.FINISHED,
    (State.LEFT, "await"): State.CUT,
}
"""The next state by the state and what happens: the process comes (again), its connection is cut, it is silent for too
long, what it pushed is saved while it is silent, it finishes, it leaves, steps wait for its rank again."""


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
        seen: time at which something last came from it, in seconds; infinite: not since the server was started.
        state: state of the session.
        configs: compressions of the worker, by number; 0 is none.
        barriers: number of barriers that were passed before it came: its own first one is the one after them.
        joined: true: its rank had another process before, so its settings are numbered anew.
        reachable: true: nothing that was sent to it has failed since its last message.
        given: number of the replica of a key that the newest compressed answer led to.
        lists: lists of keys that it names together, by its numbers.
        changes: number of changes that it has made to what the server keeps.
        saved: number of those that are in the file.
        leaving: true: it has asked to finish, or that what it pushed be saved.
        given_up: true: another process has asked for its rank.
        awaited: true: steps were made without it, and wait for it again.
    """

    peer: bytes
    rank: int
    token: bytes
    seen: float
    state: State = State.LIVE
    configs: dict[int, Compression] = field(default_factory=lambda: {0: OFF})
    barriers: int = 0
    joined: bool = False
    reachable: bool = True
    given: dict[StoreKey, int] = field(default_factory=dict)
    lists: dict[int, KeyList] = field(default_factory=dict)
    open: dict[int, Assembly] = field(default_factory=dict)
    changes: int = 0
    saved: int = 0
    leaving: bool = False
    given_up: bool = False
    awaited: bool = False

    @property
    def repeats(self) -> bool:
        """True while its process is there to repeat what the file does not have."""
        return self.state is State.LIVE and not self.leaving

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
        """Take a piece of a message; return the whole message, uint8, of a size in ``sizes``, when all pieces are here.

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
            # Each takes the memory of a whole message from its first piece on.
            if len(self.open) >= MAX_OPEN:
                raise WireError(f"a session has at most {MAX_OPEN} messages in pieces at a time")
            try:
                data = lease((nbytes,), torch.uint8)
            except (RuntimeError, MemoryError):
                # The worker learns it and goes on; for the others the server must live.
                raise ConfigError(f"this server has no room for a message of {nbytes} bytes") from None
            self.open[seq] = Assembly(data, set(range(chunks)))
        return self.open[seq]


TAKEN = 3.0
"""Seconds of silence in which a session that can be reached keeps its rank; workers ping every second."""


START = 30.0
"""Seconds in which all new processes of a run are started, after the first of them."""


class StrangerError(WireError):
    """A request came from a process without a session. A worker then introduces itself, and sends its open requests
    again.
    """


class Members:
    """A server's sessions, one for each rank that has ever come.

    Args:
        rules: settings of the server's behaviour.
        pending: waiting requests; those of a worker that is cut off are dropped.
    """

    def __init__(self, rules: Rules, pending: RequestQueue) -> None:
        self.rules, self._pending = rules, pending
        self.dead: set[int] = set()
        self.finished: set[int] = set()
        """The ranks that push no more, those that have left among them."""
        self.left: set[int] = set()
        self.changed = False
        """True: a worker came or went, so any step or wait may be complete; the core looks, and sets it to false."""
        self._ranks: dict[int, WorkerSession] = {}
        self._peers: dict[bytes, WorkerSession] = {}
        self._unheard: list[WorkerSession] = []
        self.live: set[int] = set(range(rules.workers))
        """The ranks whose pushes a step waits for."""

    def __len__(self) -> int:
        """Count the workers that are connected."""
        return len(self._peers)

    def sessions(self) -> list[WorkerSession]:
        """The sessions, also of those who are gone."""
        return list(self._ranks.values())

    def of(self, rank: int) -> WorkerSession | None:
        """Find the session of a rank."""
        return self._ranks.get(rank)

    def knows(self, peer: bytes) -> bool:
        """Return whether a process has a session."""
        return peer in self._peers

    def unreachable(self, peer: bytes) -> None:
        """Note that a message could not be sent to a worker: its connection is gone, and its rank may be taken."""
        if peer in self._peers:
            self._peers[peer].reachable = False

    def session(self, peer: bytes, now: float) -> WorkerSession:
        """Find the session of a worker that has introduced itself, and note that it is alive.

        Raises:
            StrangerError: the worker has not introduced itself, or was cut off since.
        """
        session = self._peers.get(peer)
        if session is None:
            raise StrangerError("a session starts with hello")
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
        """Find the session of another process that has a rank and has sent something lately."""
        session = self._ranks.get(rank)
        if session is None or session.token == token or session.peer == peer or session.peer not in self._peers:
            return None
        # One that is silent, or cannot be reached, has ended as a rule, and its rank may be taken.
        return session if session.reachable and now - session.seen < TAKEN else None

    def wait_for(self, session: WorkerSession) -> None:
        """Let steps wait again for a rank that is dead or has ended.

        The steps that were made without it exist only in the memory of the others until they are saved: after a restart
        they would wait for it. So this counts as a change of its own.
        """
        self._disconnect(session)
        self.move(session, "await")
        session.changes += 1
        session.awaited = True

    def enter(self, session: WorkerSession, peer: bytes, now: float) -> None:
        """Connect a session, a new one or one that was there before; the one that had its rank ends."""
        before = self._ranks.get(session.rank)
        if before is not None:
            # One process at a time has a rank: the earlier one must not push beside the new one.
            self._disconnect(before)
        session.peer, session.seen, session.reachable, session.open = peer, now, True, {}
        session.awaited = False
        self._ranks[session.rank], self._peers[peer] = session, session
        # The processes of before a restart come back, or new ones, which takes longer: who sends nothing from then on
        # is silent.
        for each in self._unheard:
            each.seen = min(each.seen, now if before is session else now + START)
        if before is session:
            self._unheard = []
        self.move(session, "come")

    def restore(self, session: WorkerSession) -> None:
        """Take in a session from a file; its process may come back."""
        session.seen = math.inf
        self._unheard.append(session)
        # Where a dead worker ends the others, too, they have ended, and are started again with it.
        ended = session.state is State.DEAD and self.rules.on_dead_worker == "error"
        session.state = State.CUT if ended or session.state is State.LIVE else session.state
        self._ranks[session.rank] = session
        self._sort(session)

    def begin_anew(self) -> None:
        """Wait for all workers again if the run in a file was over, because only another run can go on from it."""
        over = len(self._ranks) == self.rules.workers and all(
            each.state in (State.LEFT, State.DEAD) for each in self._ranks.values()
        )
        for session in self._ranks.values() if over else ():
            session.state = State.CUT
            self._sort(session)

    def move(self, session: WorkerSession, event: str) -> None:
        """Change the state of a session by the table."""
        session.state = MOVES[session.state, event]
        self._sort(session)

    def leave(self, session: WorkerSession) -> None:
        """Note that a worker closes its connection: it has left if it has finished, else it may come again."""
        self.move(session, "leave")
        # One that has not finished may come again, and what it asked for waits on.
        if session.state is State.LEFT:
            self._disconnect(session)

    def close(self, peer: bytes) -> None:
        """Cut a worker off, also one that does not read its messages."""
        if peer in self._peers:
            self.cut(self._peers[peer])

    def cut(self, session: WorkerSession, event: str = "cut") -> None:
        """End the connection of a session, and drop its waiting requests."""
        self._disconnect(session)
        self.move(session, event)

    def silent(self, now: float) -> list[WorkerSession]:
        """Find the sessions that have been silent for too long, of those that are not dead or left."""
        those = (each for each in self._ranks.values() if each.state not in (State.DEAD, State.LEFT))
        return [each for each in those if now - each.seen > self.rules.dead_after]

    def silence(self) -> str:
        """Say in words which workers are dead."""
        have = "has" if len(self.dead) == 1 else "have"
        return f"{workers(self.dead)} {have} not been heard of for {self.rules.dead_after:g} s"

    def _disconnect(self, session: WorkerSession) -> None:
        if self._peers.get(session.peer) is session:
            del self._peers[session.peer]
            # The process that comes next asks again for all that it needs.
            self._pending.drop(session.peer)

    def _sort(self, session: WorkerSession) -> None:
        """Bring the sets of ranks up to date."""
        rank, state = session.rank, session.state
        for ranks, there in (
            (self.dead, state is State.DEAD),
            (self.finished, state in (State.FINISHED, State.LEFT)),
            (self.left, state is State.LEFT),
        ):
            (ranks.add if there else ranks.discard)(rank)
        gone = rank in self.finished or (rank in self.dead and self.rules.on_dead_worker == "continue")
        (self.live.discard if gone else self.live.add)(rank)
        self.changed = True


class Barriers:
    """Barriers by their numbers: which worker has come to which, and which are passed.

    Args:
        pending: requests that wait at barriers.
    """

    def __init__(self, pending: RequestQueue) -> None:
        self.passed = 0
        self._pending = pending
        self._arrived: dict[int, set[int]] = {}

    def arrive(self, rank: int, number: int) -> set[int]:
        """Note that a worker is at a barrier; return all workers that are.

        Raises:
            WireError: the number is not the next one.
        """
        if number > self.passed + 1:
            lost = (
                "where the server was restarted without a snapshot, or with an older copy of it, those before are lost"
            )
            raise WireError(f"barrier {number} is not the next one, {self.passed + 1}: {lost}")
        arrived = self._arrived.setdefault(number, set())
        arrived.add(rank)
        self._arrived = {n: ranks for n, ranks in self._arrived.items() if n > number - 2}
        return arrived

    def pass_to(self, number: int) -> None:
        """Mark barriers up to this one as passed by all workers."""
        self.passed = max(self.passed, number)
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
