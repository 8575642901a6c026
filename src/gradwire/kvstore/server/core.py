"""The server without its sockets: messages in, messages out, and time as a number.

    hello -> a session for a rank; another session of the same rank ends the old one
    requests of a session are answered by "seq"; what has to wait (a pull for its step, an init for rank 0's value, a
    barrier for the others) is in a list and answered when what it waits for happens, or with an error when it cannot

It owns the parts of a server: values, members, waiting requests, optimizers.

Invariants:
    * Whatever arrives, from whomever, the answer is a message or silence, never an exception.
    * A message is checked against the table of requests before anything is looked up.
    * A request changes something only after all of it was checked.
    * Memory grows with the number of workers W: the sessions, and for each key that is being summed up to W payloads.

Failure modes:
    A session that sends what the protocol does not allow is closed.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from gradwire.errors import ConfigError, GradwireError, WireError
from gradwire.kvstore.protocol.messages import CHUNK, REQUESTS, Outgoing, chunk_count, pack, unpack
from gradwire.kvstore.server import key_requests, run_requests
from gradwire.kvstore.server.journal import NOTHING, Journal
from gradwire.kvstore.server.members import Barriers, Members, State, StrangerError, WorkerSession
from gradwire.kvstore.server.optimizer_settings import OptimizerSettings
from gradwire.kvstore.server.pending import KEPT, PendingRequest, RequestQueue, Topic
from gradwire.kvstore.server.rules import Counters, Rules
from gradwire.kvstore.server.stored_part import Contribution, StoredPart
from gradwire.kvstore.server.values import Progress, ValueFrames, Values
from gradwire.kvstore.system import SYSTEM, System

__all__ = ["ServerCore"]

HANDLERS: dict[str, Callable[..., list[Outgoing]]] = {
    name: getattr(module, name) for module in (key_requests, run_requests) for name in module.__all__
}
"""The function of each request: it gets the core, the session, the fields by their names, and, of a request in pieces,
the frames after the header. Only ``hello`` comes from a process without a session."""


class ServerCore:
    """One server: its state, and its answers to messages.

    Args:
        rules: settings of its behaviour.
        parts: restored from a snapshot.
        journal: file in which the server keeps its state; None: its state ends with it.
        system: machine that the server runs on.

    Attributes:
        epoch: name of this process.
        run: name of what is kept: that of the process that began it.
        place: index of this server and number of servers; None until the first worker has said it.
        wanted: true: something waits for a snapshot.
        snapshots: number of the newest snapshot of this run; 0: there is no file.
        began: number of the snapshot with which this process began; 0: there is no file.
    """

    def __init__(
        self, rules: Rules, parts: Iterable[StoredPart] = (), journal: Journal | None = None, system: System = SYSTEM
    ) -> None:
        self.rules, self.journal = rules, journal
        self.epoch = self.run = system.random(16)
        self.place: tuple[int, int] | None = None
        self.wanted, self.snapshots, self.began = False, 0, 0
        self.counters = Counters()
        self.pending = RequestQueue()
        self.members = Members(rules, self.pending)
        self.barriers = Barriers(self.pending)
        self.progress = Progress(rules, self.members)
        self.values = Values(rules, self.pending, self.counters, parts)
        self.frames = ValueFrames()
        self.optimizers = OptimizerSettings(self.values.alone)
        self.now = 0.0

    def receive(
        self, peer: bytes, frames: Sequence[bytes | memoryview], now: float, owner: int | None = None
    ) -> list[Outgoing]:
        """Take one message, and return the messages to send because of it.

        Args:
            peer: name of the sender in the transport.
            frames: the header and at most one frame.
            now: seconds, from any start.
            owner: the rank whose key the sender has; None: keys are not used, or are nobody's alone.
        """
        seq, self.now = 0, now
        try:
            op, fields, rest = unpack(frames, REQUESTS)
            seq = fields.get("seq", 0)
            if op == "hello":
                return [*HANDLERS[op](self, peer, owner, **fields), *self._progress()]
            session = self.members.session(peer, now)
            data = {"rest": rest} if "chunk" in fields else {}
            return [*HANDLERS[op](self, session, **data, **fields), *self._progress()]
        except StrangerError as error:
            # The worker introduces itself, and sends its requests again: nothing is closed.
            return [self.error(peer, seq, "hello", error)]
        except WireError as error:
            return self._break_off(peer, seq, error)
        except GradwireError as error:
            return [self.error(peer, seq, "config", error)]
        except Exception as error:
            # A message that got through all checks and should not have must not end the server for everybody.
            traceback.print_exc()
            return self._break_off(peer, seq, WireError(type(error).__name__))

    def tick(self, now: float) -> list[Outgoing]:
        """Detect workers that have been silent for too long; to be called about once a second."""
        self.now = now
        out: list[Outgoing] = []
        if self.journal is not None:
            # Records that could not be written before are tried again.
            self.journal.flush()
        # A file that cannot be appended to may still be replaced.
        self.wanted |= bool(self.trouble)
        for session in self.members.silent(now):
            if session.state is not State.CUT:
                self.members.cut(session, "silent")
            error = self.rules.on_dead_worker == "error"
            # Dead only when all that it pushed is in the file, because nobody will repeat it.
            if session.state is State.CUT and (self.saved(session) or error):
                self.members.move(session, "saved")
            if session.state is not State.CUT:
                self.note(session)
            if session.state is State.DEAD and error:
                # Every wait that only the dead could end.
                out += [self._dead(each.peer, each.seq, each.what) for each in self.pending.take_stuck()]
        return [*out, *self._progress()]

    def keep(self, header: dict[str, Any], data: memoryview = NOTHING) -> Callable[[], bool]:
        """Write a change to the file; return the condition that it is there, which an acknowledgement waits for."""
        if self.journal is not None:
            self.journal.append(header, data)
        return self.kept()

    def kept(self) -> Callable[[], bool]:
        """Return the condition that all changes so far are in the file: whoever is answered relies on them, also after
        a restart.
        """
        journal, number = self.journal, 0 if self.journal is None else self.journal.written
        return lambda: journal is None or journal.kept >= number

    @property
    def trouble(self) -> str:
        """The reason why the file could not be written the last time; empty if it could, or there is none."""
        return "" if self.journal is None else self.journal.trouble

    def take_back(self) -> None:
        """Take a record back that could not be written."""
        if self.journal is not None:
            self.journal.take_back()

    def note(self, session: WorkerSession) -> Callable[[], bool]:
        """Write the state of a session to the file; return the condition that it is there."""
        return self.keep({"op": "state", "rank": session.rank, "state": session.state.value})

    def saved(self, session: WorkerSession) -> bool:
        """Return whether all that a session has pushed is in the file, and else ask for a snapshot."""
        if self.journal is None or session.saved == session.changes:
            return True
        self.wanted = True
        return False

    def saved_since(self, snapshot: int) -> bool:
        """Return whether a snapshot was written after the one with a number."""
        return self.journal is None or self.snapshots > snapshot

    def mark_saved(self) -> None:
        """Note that a snapshot has all of this."""
        waiting = {rank for unit in self.values.units() for pushes in unit.pending.values() for rank in pushes}
        for session in self.members.sessions():
            # Pushes of steps that are not made yet are not in a snapshot where their worker repeats them.
            if session.rank not in waiting or not session.repeats:
                session.saved = session.changes
        self.values.mark_durable()
        self.wanted = False
        self.snapshots += 1

    def when_kept(
        self, session: WorkerSession, seq: int, ready: Callable[[], bool], answer: Callable[[], list[Outgoing]]
    ) -> list[Outgoing]:
        """Answer when something is in the file, whoever is dead."""
        if ready():
            return answer()
        self.pending.add(KEPT, PendingRequest(session.peer, seq, self.unkept, ready, answer))
        return []

    def unkept(self) -> str:
        """Say in words what the file waits for."""
        return f"the server's file is not written yet: {self.trouble or 'it is being written'}"

    def done(
        self, session: WorkerSession, seq: int, version: int = 0, units: Sequence[StoredPart] = ()
    ) -> list[Outgoing]:
        """Acknowledge a request about units."""
        kept = {"durable": self._durable(session, units), "snapshots": self.snapshots}
        return [(session.peer, [pack("done", seq=seq, version=version, **kept)])]

    def error(self, peer: bytes, seq: int, kind: str, error: Exception) -> Outgoing:
        """Refuse a request."""
        self.counters.refused += 1
        return peer, [pack("error", seq=seq, kind=kind, text=printable(str(error)))]

    def pong(self) -> bytes:
        """Answer a ping, with the ranks that are dead, and what is wrong with the file."""
        return pack("pong", dead=sorted(self.members.dead), trouble=printable(self.trouble))

    def value(
        self, session: WorkerSession, seq: int, data: Tensor, units: Sequence[StoredPart] = (), method: str = "none"
    ) -> list[Outgoing]:
        """Answer a request about units with bytes that a method made (uint8), in messages no longer than a chunk."""
        count, view = chunk_count(data.numel()), data.numpy().data
        self.counters.bytes_out[method] += data.numel()
        kept = {"durable": self._durable(session, units), "snapshots": self.snapshots}
        fields = {"seq": seq, "chunks": count, "nbytes": data.numel(), **kept}
        chunks = [(i, view[i * CHUNK : (i + 1) * CHUNK]) for i in range(count)]
        return [(session.peer, [pack("value", chunk=i, **fields), chunk]) for i, chunk in chunks]

    def take_push(self, session: WorkerSession, part: StoredPart, step: int, push: Contribution) -> None:
        """Take a push once, even if it comes again; it is applied at once where no worker waits for others, else with
        all of its step.
        """
        method = push.compression.push.name if push.compression.push is not None else "none"
        self.counters.bytes_in[method] += push.data.numel()
        self.counters.pushes[method] += part.count
        if self.progress.sync:
            fresh = part.is_new(session.rank, step, push)
            if fresh:
                part.pending.setdefault(step, {})[session.rank] = push
                self.counters.begun.setdefault((part.topic, step), session.seen)
        else:
            fresh = part.apply_one(session.rank, step, push, self.optimizers.updaters)
            self.counters.steps += fresh * part.count
        session.changes += fresh
        self.counters.repeated += part.count * (not fresh)
        self.pending.touch(part.topic)

    def when(
        self,
        topic: Topic,
        session: WorkerSession,
        seq: int,
        what: Callable[[], str],
        ready: Callable[[], bool],
        answer: Callable[[], list[Outgoing]],
    ) -> list[Outgoing]:
        """Answer a request now, or when a change of the topic has made it ready; with an error where none ever will.
        ``what`` says in words what it waits for.
        """
        if ready():
            return answer()
        part = self.values.unit(topic)
        if part is not None and part.failed:
            return [self.error(session.peer, seq, "config", ConfigError(part.failed))]
        if self.members.dead and self.rules.on_dead_worker == "error":
            return [self._dead(session.peer, seq, what)]
        self.pending.add(topic, PendingRequest(session.peer, seq, what, ready, answer))
        return []

    def when_all(
        self,
        session: WorkerSession,
        seq: int,
        steps: Sequence[tuple[StoredPart, int]],
        holds: Callable[[StoredPart, int], bool],
        answer: Callable[[], list[Outgoing]],
    ) -> list[Outgoing]:
        """Answer a request when a condition holds for each of its units, which are given with their steps."""
        for part, step in self.values.current(steps):
            ready = partial(holds, part, step)
            if not ready():
                missing = self.progress.missing(part, session.rank, step)
                again = partial(self.when_all, session, seq, steps, holds, answer)
                return self.when(part.topic, session, seq, missing, ready, again)
        return answer()

    def _durable(self, session: WorkerSession, units: Sequence[StoredPart]) -> list[int]:
        """List for each unit the step up to which the worker need not keep its pushes."""
        step = self.progress.version if self.journal is None else self.progress.durable
        return [min(step(part, session.rank) for part in unit.units()) for unit in units]

    def _progress(self) -> list[Outgoing]:
        """Apply steps that are complete, and answer requests that waited for them; an answer may separate keys."""
        if self.members.changed:
            self.pending.touch(*self.pending.topics(), *(each.topic for each in self.values.units() if each.pending))
            self.members.changed = False
        out: list[Outgoing] = []
        if KEPT in self.pending:
            self.pending.touch(KEPT)
        # An answer may change what others wait for, such as when it separates the keys of a list, so they are looked at
        # again.
        while self.pending.touched or self.pending.again:
            out += self._progress_once()
        return out

    def _progress_once(self) -> list[Outgoing]:
        touched, self.pending.touched = self.pending.touched, {}
        live = self.members.live
        out: list[Outgoing] = []
        # All steps first: a pull of many keys would find one after the other.
        for topic in touched:
            part = self.values.unit(topic)
            while self.progress.sync and part is not None and (pushes := part.ready(live)) is not None:
                try:
                    part.apply(pushes, self.optimizers.updaters)
                except Exception as error:
                    out += self._fail(part, error)
                    break
                self.counters.complete(part.topic, part.version, self.now, part.count)
        again, self.pending.again = self.pending.again, []
        out += [out for each in again for out in each.answer()]
        return out + [out for topic in touched for each in self.pending.take_ready(topic) for out in each.answer()]

    def _fail(self, part: StoredPart, error: Exception) -> list[Outgoing]:
        """Tell all who wait for a step that it could not be applied: those who come later are told, too."""
        traceback.print_exc()
        part.failed = f"step {part.version + 1} of {part.title} could not be applied: {type(error).__name__}: {error}"
        told = ConfigError(part.failed)
        return [self.error(each.peer, each.seq, "config", told) for each in self.pending.take_all(part.topic)]

    def _dead(self, peer: bytes, seq: int, what: Callable[[], str]) -> Outgoing:
        return peer, [pack("error", seq=seq, kind="dead", text=f"{self.members.silence()}: {what()}")]

    def _break_off(self, peer: bytes, seq: int, error: Exception) -> list[Outgoing]:
        self.members.close(peer)
        return [self.error(peer, seq, "wire", error)]


def printable(text: str) -> str:
    r"""Clean a text for a terminal and a log: no control characters, no line breaks, and a limited length.

    >>> printable("a\x1b[2J\nb")
    'a\\x1b[2J\\nb'
    """
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:500])
