"""Who is there: introductions, silence, and who may have which rank.

    hello, another token   taken in where the rank is free, or its session has been silent or cannot be reached
    hello, the same token  the same process after a cut cable: it goes on with what it had told the server
    silence                the rank counts as dead; the same process may come back, another one may take its place

A rank with a key of its own (CURVE) belongs to that key. Without keys whoever can reach the server may take a free
place, but not that of a worker that is heard of.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.messages import VERSION, Outgoing, pack
from gradwire.kvstore.server.parts import StoredPart
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.session import WorkerSession
from gradwire.kvstore.server.state import ServerState

__all__ = ["ServerSessions", "StrangerError"]

TAKEN = 3.0
"""Seconds of silence in which a session that can be reached keeps its rank; workers ping every second."""


class StrangerError(WireError):
    """Somebody who has no session. A worker introduces itself then, and sends again what was not answered."""


class ServerSessions(ServerState):
    """A server's sessions.

    Args:
        rules: how it behaves.
        entries: restored from a snapshot; None: it starts empty.
    """

    def __init__(self, rules: Rules, entries: Iterable[StoredPart] | None = None) -> None:
        super().__init__(rules, entries)
        self._lost: dict[int, WorkerSession] = {}
        self._seen: set[int] = set()
        self._barriers: dict[int, set[int]] = {}
        self._passed, self._now = 0, 0.0

    def knows(self, peer: bytes) -> bool:
        """Whether it has a session."""
        return peer in self._sessions

    def unreachable(self, peer: bytes) -> None:
        """What was to be sent to a worker could not be: its connection is gone, and its rank may be taken."""
        if peer in self._sessions:
            self._sessions[peer].reachable = False

    def give_up(self, peer: bytes) -> None:
        """End the session of a worker that does not read what it is sent."""
        self._close(peer)

    def _session(self, peer: bytes, now: float) -> WorkerSession:
        """Of somebody who has introduced himself; he is alive."""
        session = self._sessions.get(peer)
        if session is None:
            session = next((each for each in self._lost.values() if each.peer == peer), None)
            if session is None:
                raise StrangerError("a session starts with hello")
            # Silent for long, as a process that was stopped, and never cut off: it goes on.
            self._enter(session)
        session.seen, session.reachable = now, True
        return session

    def _hello(
        self, peer: bytes, now: float, owner: int | None, version: int, rank: int, world: int, sync: bool,
        session: bytes,
    ) -> list[Outgoing]:  # fmt: skip
        self._check_place(owner, version, rank, world, sync)
        old = [each for each in self._sessions.values() if each.rank == rank]
        before = [*old, *([self._lost[rank]] if rank in self._lost else [])]
        known = next((each for each in before if each.token == session), None)
        for each in [] if known is not None else old:
            if each.peer != peer and each.reachable and now - each.seen < TAKEN:
                text = f"rank {rank} is taken by a worker that was heard of {now - each.seen:.1f} s ago"
                # Whether that one can still be reached is known when something is sent to it.
                return [(each.peer, [self._pong()]), (peer, [pack("error", seq=0, kind="taken", text=text)])]
        self.sync = sync
        for each in old:
            self._close(each.peer)
        fresh = WorkerSession(peer, rank, session, now)
        if known is not None:
            fresh.configs, fresh.barriers, fresh.given = known.configs, known.barriers, known.given
            fresh.joined, fresh.joints = known.joined, known.joints
        else:
            self._start_again(fresh)
        self._enter(fresh)
        told = {"restored": self.restored, "snapshots": self.rules.snapshots}
        reply = pack("welcome", epoch=self.epoch, rank=rank, world=world, **told)
        return [(peer, [reply])]

    def _check_place(self, owner: int | None, version: int, rank: int, world: int, sync: bool) -> None:
        if version != VERSION:
            raise WireError(
                f"this server speaks version {VERSION} of the protocol, not {version}: install the same gradwire on "
                "all machines"
            )
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
        if self.sync not in (None, sync):
            names = ("dist_sync", "dist_async") if self.sync else ("dist_async", "dist_sync")
            raise ConfigError(f"all workers must create a {names[0]} store, as the first did, got {names[1]}")

    def _start_again(self, session: WorkerSession) -> None:
        """Another process of a rank, or its first one."""
        session.joined = session.rank in self._seen
        self.finished.discard(session.rank)
        session.barriers = self._passed
        for entry in () if self.sync else self.units():
            entry.forget_early(session.rank)
        for arrived in self._barriers.values():
            arrived.discard(session.rank)

    def _enter(self, session: WorkerSession) -> None:
        self._seen.add(session.rank)
        self._lost.pop(session.rank, None)
        self.dead.discard(session.rank)
        self.left.discard(session.rank)
        self._sessions[session.peer] = session
        self._touch_all()

    def _lose(self, session: WorkerSession) -> list[Outgoing]:
        self.dead.add(session.rank)
        self._close(session.peer)
        self._lost[session.rank] = session
        self._touch_all()
        return [] if self.rules.on_dead_worker == "continue" else self._tell_dead()

    def _tell_dead(self) -> list[Outgoing]:
        """End every wait that only the dead could end."""
        stuck = self._waits.take_stuck()
        return [(w.peer, [pack("error", seq=w.seq, kind="dead", text=f"{self._silence()}: {w.what()}")]) for w in stuck]

    def _pong(self) -> bytes:
        return pack("pong", dead=sorted(self.dead))

    def _touch_all(self) -> None:
        """Who lives has changed: any step or wait may be complete."""
        self._touched |= self._waits.topics() | {entry.topic for entry in self.units() if entry.pending}
