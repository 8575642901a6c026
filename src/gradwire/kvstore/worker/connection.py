"""Connection of a worker to one server.

Invariants:
    * A request is sent in pieces, those of larger priority first and short requests before long ones.
    * A request is sent again if the connection was lost before its answer. The server recognises requests that it has
      already handled.
    * Each session begins with the worker's declarations (compressions, optimizers, lists of keys).
    * To a server that was restarted from its snapshot the worker repeats the pushes that the snapshot does not contain.

Failure modes:
    If a repeated push is refused that was acknowledged before, every request fails from then on, because what the
    worker had pushed is lost.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import zmq
from torch import Tensor

from gradwire._system import Readings
from gradwire.errors import ConfigError, GradwireError, GroupError, WireError
from gradwire.kvstore.protocol.messages import CHUNK, MAX_OPEN, REPLIES, chunk_count, pack, unpack
from gradwire.kvstore.protocol.small_keys import Unit
from gradwire.kvstore.worker.handshake import ConnectionMonitor, lock_worker
from gradwire.notices import log

__all__ = ["Block", "Request", "ScatterSink", "ServerConnection"]

HELLO_INTERVAL = 0.5
"""Seconds after which a worker whose rank is taken introduces itself again."""

HELLO_TIMEOUT = 8.0
"""Seconds after which it gives up, because the process that has its rank is alive."""

DISCONNECT_TIMEOUT = 8.0
"""Seconds without a connection after which a server counts as dead; servers allow silent workers as many by default."""

RESTART_TIMEOUT = 30.0
"""Seconds in which a server that keeps a snapshot may be restarted."""

HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT = 2000, 15000
"""Milliseconds between two heartbeats of ZeroMQ, and without one after which a connection counts as lost.

A machine that loses power closes no connection. ZeroMQ's own threads answer, so a server that computes is not lost.
"""


SOCKET_QUEUE = 16
"""Messages that a socket may hold; a message in it can no longer be overtaken by an urgent one."""


Block: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"


class ServerConnection:
    """The connection to one server, used by one thread alone.

    Args:
        title: name and address of the server for messages: "server 0 at tcp://127.0.0.1:7000".
        identity: name of this connection on the server.
        hello: first message of every connection.
        keys: this worker's folder with keys; None: the connection is not encrypted.
        server_timeout: seconds that the server may be disconnected before its requests fail; None:
            ``DISCONNECT_TIMEOUT``, or ``RESTART_TIMEOUT`` if it keeps a snapshot.
        clock: clock of the thread.

    Attributes:
        up: true if the server has accepted the hello of this connection.
        unanswered: requests without an answer, by number.
        declared: requests that are sent again in each session.
        log: pushes that may have to be sent again, by topic and step.
        lost: error of all requests from now on: what the server had acknowledged is gone.
        snapshots: number of the newest snapshot of which the server has told; 0: it keeps none; None: it has not said.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        title: str,
        endpoint: str,
        identity: bytes,
        hello: bytes,
        keys: Path | None,
        server_timeout: float | None,
        clock: Readings,
    ) -> None:
        self.title, self.endpoint, self.hello = title, endpoint, hello
        self._clock = clock
        self.socket = context.socket(zmq.DEALER)
        for option, value in (
            (zmq.IDENTITY, identity),
            # A second after the end for the last messages, so that the server hears "leave".
            (zmq.LINGER, 1000),
            (zmq.SNDHWM, SOCKET_QUEUE),
            # Without a limit: this worker asked for all that arrives, so its requests bound it.
            (zmq.RCVHWM, 0),
            # The kernel alone would try again after 1, 3, 7 and 15 seconds where a machine does not answer.
            (zmq.CONNECT_TIMEOUT, 2000),
            (zmq.RECONNECT_IVL, 50),
            (zmq.RECONNECT_IVL_MAX, 500),
            (zmq.HEARTBEAT_IVL, HEARTBEAT_INTERVAL),
            (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT),
        ):
            self.socket.setsockopt(option, value)
        if keys is not None:
            lock_worker(self.socket, keys)
        self.monitor = ConnectionMonitor(self.socket, title, keys, self._clock)
        self.socket.connect(endpoint)
        self._server_timeout, self._warned, self._trouble = server_timeout, False, ""
        self.snapshots: int | None = None
        self.up, self.epoch, self.run, self.bounded = False, b"", b"", False
        self.lost: Exception | None = None
        self._hello_due = False
        self._refused: tuple[float, float] | None = None
        self._busy = ""
        self.heard = self._clock.now
        self.dead: set[int] = set()
        self.unanswered: dict[int, Request] = {}
        self.declared: list[Request] = []
        self.log: dict[Any, dict[int, Request]] = {}
        self._lists: dict[Any, set[Any]] = {}
        self._lists_of: dict[Any, list[Any]] = {}
        self._reached: dict[Any, dict[Any, int]] = {}
        self._heap: list[tuple[tuple[bool, int, bool], int, Request, int]] = []
        self._partly_sent = 0
        self._order = itertools.count()

    def add(self, request: Request) -> None:
        """Take a request, and send it as soon as the connection is up."""
        if self.lost is not None:
            # The server has lost what it had acknowledged, so nothing that follows could be right.
            self._finish(request, error=self.lost)
            return
        self.unanswered[request.seq] = request
        if request.declare:
            # Repeated to a server that was restarted, before the pushes that name them.
            self.declared = [*self._needed_declarations(), request]
        for topic, step in request.pushed():
            self.log.setdefault(topic, {})[step] = request
        if request.op == "join":
            many = "list", request.fields["number"]
            self._lists[many] = set(request.fields["keys"])
            for key in request.fields["keys"]:
                self._lists_of.setdefault(key, []).append(many)
        # Otherwise ``_welcome`` queues it.
        if self.up:
            self._queue(request)

    @property
    def poll_flags(self) -> int:
        """The events of the socket that are waited for."""
        return zmq.POLLIN | (zmq.POLLOUT if self._hello_due or (self.up and self._heap) else 0)

    def write(self) -> None:
        """Send messages until the socket is full."""
        while self.up and self._heap:
            at = self._next()
            rank, order, request, piece = self._heap[at]
            try:
                self.socket.send_multipart(request.frames(piece), zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            if piece + 1 < request.pieces():
                self._partly_sent += not piece
                # It keeps its place, so the request that was begun first is complete first, and few are incomplete.
                self._heap[at] = (rank, order, request, piece + 1)
                continue
            self._partly_sent -= piece > 0
            if at:
                del self._heap[at]
                heapq.heapify(self._heap)
            else:
                heapq.heappop(self._heap)

    def _next(self) -> int:
        """Find the next piece in the heap, within the server's limit for messages in pieces."""
        _, _, request, piece = self._heap[0]
        if piece or request.pieces() == 1 or self._partly_sent < MAX_OPEN:
            return 0
        return min((i for i, each in enumerate(self._heap) if each[3]), key=lambda i: self._heap[i][:2])

    def handle_events(self) -> None:
        """Introduce this worker on a new connection; after a disconnection, messages on the way count as lost."""
        for opened in self.monitor.events():
            # What was queued or half sent is queued again from ``unanswered`` after the next welcome.
            self.up, self._heap, self._partly_sent = False, [], 0
            if opened:
                self._introduce()

    @property
    def server_timeout(self) -> float:
        """The seconds for which the server may be disconnected."""
        return self._server_timeout or (DISCONNECT_TIMEOUT if self.snapshots == 0 else RESTART_TIMEOUT)

    def error(self, now: float, timeout: float) -> GradwireError | None:
        """Return the reason why no request will be answered; None while they may be.

        Args:
            timeout: seconds that a server may be connected and silent.
        """
        if self.monitor.refusal:
            return ConfigError(self.monitor.refusal)
        away = self.monitor.disconnected_for(now)
        if away > self.server_timeout:
            return GroupError(f"{self.title} has been away for {away:.1f} s: {self._remedy()}")
        if away > DISCONNECT_TIMEOUT and not self._warned:
            self._warned = True
            log.warning("%s has been away for %.1f s: %s", self.title, away, self._remedy())
        if now - self.heard > timeout:
            return GroupError(f"{self.title} has not been heard of for {timeout:g} s: {self.state(now)}")
        return None

    def state(self, now: float) -> str:
        """Describe the state of the connection in words."""
        if not self.monitor.opened:
            return f"{self.title} never answered: is it started, and is that its address?"
        if self.monitor.lost is not None:
            return f"{self.title} has been away for {self.monitor.disconnected_for(now):.1f} s"
        if self._busy:
            return f"{self.title} does not take this worker in yet: {self._busy}"
        return f"{self.title} is connected, and was last heard of {now - self.heard:.1f} s ago"

    def _remedy(self) -> str:
        if self.snapshots == 0:
            return (
                "it keeps no snapshot, so its values are lost if it has ended. Start the run again, with --snapshot "
                "FILE of `gradwire server` if it is to survive this; GRADWIRE_SERVER_TIMEOUT (seconds) says how long a "
                f"lost connection is waited for, now {self.server_timeout:g}"
            )
        had = "that it had" if self.snapshots else "that it had, if any"
        return (
            f"start it again at this address with the --snapshot file {had}, and training goes on; "
            f"GRADWIRE_SERVER_TIMEOUT (seconds) says how long that is waited for, now {self.server_timeout:g}"
        )

    def reintroduce(self, now: float) -> None:
        """Introduce this worker again if its rank was taken, or the server waited for its disk.

        As a rule its previous process has it, and the server has not noticed yet that this process has ended.
        """
        if self._refused is not None and now - self._refused[1] > HELLO_INTERVAL:
            self._refused = (self._refused[0], now)
            self._hello_due = True
        if self._hello_due:
            self._introduce()

    def _introduce(self) -> None:
        # Nothing may go before the introduction: the server refuses requests of a sender that it does not know.
        self.up, self._heap, self._partly_sent, self._hello_due = False, [], 0, True
        with contextlib.suppress(zmq.Again):
            # A full socket is no error: the introduction stays due.
            self.socket.send(self.hello, zmq.NOBLOCK)
            self._hello_due = False

    def signal(self, op: str) -> None:
        """Send a message without fields that is not answered by number."""
        try:
            self.socket.send(pack(op), zmq.NOBLOCK)
        except zmq.Again:
            # No error: a ping is repeated, and a worker that has left is noticed by its silence.
            return

    def read(self) -> None:
        """Read the messages that have arrived.

        Raises:
            WireError: the server sent a message that the protocol does not allow.
        """
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            op, fields, rest = unpack([frame.buffer for frame in frames], REPLIES)
            self.heard = self._clock.now
            # ``unpack`` lets the names and fields of REPLIES pass and no others: a server cannot call another method.
            getattr(self, f"_{op}")(rest, **fields)

    def fail(self, error: Exception) -> None:
        """Fail all requests, because nothing more will be answered; what was acknowledged before is still repeated."""
        for request in [each for each in self.unanswered.values() if not each.acknowledged]:
            self._finish(request, error=error)

    def close(self) -> None:
        """Close the connection."""
        if self.up:
            self.signal("leave")
        # Before the socket, whose events it reads.
        self.monitor.close()
        self.socket.close()

    def _welcome(
        self, rest: list[memoryview], epoch: bytes, run: bytes, rank: int, world: int, snapshots: int, bounded: bool
    ) -> None:
        # Another epoch is another process: it knows of this worker what its snapshot has, which may be nothing.
        another, self.epoch = self.epoch not in (b"", epoch), epoch
        if self.run not in (b"", run):
            had = "its snapshot, or with another server's or another run's" if self.snapshots else "a snapshot"
            self._lose(GroupError(f"{self.title} was restarted without {had}: its values are lost"))
        elif another and snapshots < (self.snapshots or 0):
            self._lose(
                GroupError(
                    f"{self.title} was restarted with an older copy of its snapshot, number {snapshots}: what was "
                    f"pushed until number {self.snapshots} is lost"
                )
            )
        self.run, self.bounded, self._warned, self._busy = run, bounded, False, ""
        self.snapshots = max(snapshots, self.snapshots or 0)
        self.up, self._heap, self._partly_sent, self._refused = True, [], 0, None
        again = {request.seq: request for request in self.declared}
        if another:
            again |= {request.seq: request for steps in self.log.values() for request in steps.values()}
        # By number, so that pushes of a key come in the order of their steps, and declarations before what names them.
        for _, request in sorted((again | self.unanswered).items()) if self.lost is None else ():
            self.unanswered[request.seq] = request
            self._queue(request)

    def _needed_declarations(self) -> list[Request]:
        """List the declarations that a later or a repeated push may name; the optimizer may change in every step."""
        kept = self.declared
        for op in ("optimizer", "config"):
            newest = max((each.fields["number"] for each in kept if each.op == op), default=0)
            if not newest:
                continue
            # An open pull may name a compression; 0 is none.
            named = [each.fields.get(op, 0) for each in self.unanswered.values() if each.op == "follow"]
            # The first push of a unit that names one names the oldest.
            pushes = (each.values() for each in self.log.values())
            named += [next((number for push in steps if (number := push.fields.get(op, 0))), 0) for steps in pushes]
            # Where another server has refused the newest compression, the one before stays in use.
            in_use = newest - 1 if op == "config" else newest
            oldest = min([*filter(None, named), in_use])
            kept = [each for each in kept if each.op != op or each.fields["number"] >= oldest]
        return kept

    def _queue(self, request: Request) -> None:
        request.missing = None
        heapq.heappush(self._heap, (request.rank, next(self._order), request, 0))

    def _done(self, rest: list[memoryview], seq: int, version: int, durable: list[int], snapshots: int) -> None:
        self.snapshots = snapshots
        request = self.unanswered.get(seq)
        if request is not None:
            self._forget(request, durable)
            self._finish(request, version)

    def _value(
        self,
        rest: list[memoryview],
        seq: int,
        chunk: int,
        chunks: int,
        durable: list[int],
        snapshots: int,
        nbytes: int,
    ) -> None:
        self.snapshots = snapshots
        request = self.unanswered.get(seq)
        if request is None:
            return
        if request.future.cancelled():
            # The caller has gone on, and may have another use for the memory of the answer.
            del self.unanswered[seq]
            return
        if request.missing is None:
            request.missing = set(range(chunks))
            if not request.make_room(nbytes):
                self._finish(request, error=WireError(f"a value has {nbytes} bytes, which do not fit"))
                return
        piece = np.frombuffer(rest[0], np.uint8) if rest else np.empty(0, np.uint8)
        assert request.out is not None
        # Checked before the bytes are written: they go directly into the caller's tensors.
        if nbytes != request.out.nbytes or chunk * CHUNK + len(piece) > nbytes:
            raise WireError(f"piece {chunk} of a value of {nbytes} bytes does not fit in {request.out.nbytes}")
        request.out.write(chunk * CHUNK, piece)
        request.missing.discard(chunk)
        if not request.missing:
            self._forget(request, durable)
            self._finish(request)

    def _error(self, rest: list[memoryview], seq: int, kind: str, text: str) -> None:
        if kind == "hello":
            # A message that was in the socket when the connection was lost has overtaken the introduction.
            if self.up:
                self._introduce()
            return
        if kind in ("taken", "busy"):
            # What is asked for meanwhile has a deadline of its own, so a server that waits for its disk is waited for.
            now, self._busy = self._clock.now, text if kind == "busy" else ""
            since = now if self._refused is None or kind == "busy" else self._refused[0]
            self._refused = (since, now)
            if now - since < HELLO_TIMEOUT:
                return
        kinds: dict[str, type[Exception]] = {"config": ConfigError, "wire": WireError}
        # A server that has lost its values refuses later requests, too: the first error says why.
        error = self.lost or kinds.get(kind, GroupError)(f"{self.title}: {text}")
        request = self.unanswered.pop(seq, None)
        if not seq and not self.up and kind in kinds:
            # An introduction is refused: what is asked for from now on is, too, until there is another connection.
            self.monitor.refusal = str(error)
        if request is None:
            self.fail(error)
        elif request.acknowledged and kind == "dead":
            return
        elif request.acknowledged:
            self._lose(GroupError(f"{self.title} was restarted and refuses what it had acknowledged before: {text}"))
        else:
            self._disown(request)
            self._finish(request, error=error)

    def _disown(self, request: Request) -> None:
        """Forget a request that was refused: it is not repeated."""
        self.declared = [each for each in self.declared if each is not request]
        for topic, step in request.pushed():
            self.log.get(topic, {}).pop(step, None)

    def _lose(self, error: Exception) -> None:
        """Fail all requests from now on, because what the server had acknowledged is lost."""
        self.lost = self.lost or error
        log.error("%s", self.lost)
        self.fail(self.lost)

    def _pong(self, rest: list[memoryview], dead: list[int], trouble: str) -> None:
        self.dead = set(dead)
        if trouble not in ("", self._trouble):
            log.warning(
                "%s: snapshot %s; until then this worker keeps all that it pushes in memory", self.title, trouble
            )
        self._trouble = trouble

    def _forget(self, request: Request, durable: Sequence[int]) -> None:
        """Drop the pushes that the server will not ask for again: up to a step for each unit of a request."""
        for topic, step in zip(request.topics(), durable, strict=False):
            self._forget_unit(topic, step)

    def _forget_unit(self, topic: Any, durable: int) -> None:
        keys = self._lists.get(topic, {topic})
        for each in (topic, *keys):
            self._drop(each, durable)
        # Pushes of another list that has some of these keys are dropped when all of its keys have come so far.
        lists = {many for key in keys for many in self._lists_of.get(key, ()) if many != topic and self.log.get(many)}
        for many in lists:
            reached = self._reached.setdefault(many, {})
            reached |= dict.fromkeys(keys & self._lists[many], durable)
            if len(reached) == len(self._lists[many]):
                self._drop(many, min(reached.values()))
                del self._reached[many]

    def _drop(self, topic: Any, durable: int) -> None:
        steps = self.log.get(topic, {})
        for step in [step for step in steps if step <= durable]:
            del steps[step]

    def _finish(self, request: Request, version: int = 0, error: Exception | None = None) -> None:
        self.unanswered.pop(request.seq, None)
        if request.future.done():
            return
        # The waiting thread may cancel it at this moment.
        with contextlib.suppress(InvalidStateError):
            if error is None:
                request.future.set_result(version)
            else:
                request.future.set_exception(error)


class ScatterSink:
    """The destination of one answer: the memory of one or several tensors, to which the bytes are written directly.

    Args:
        blocks: offset of each tensor's bytes in the answer, and its memory.
        nbytes: size of the answer.
    """

    def __init__(self, blocks: Sequence[tuple[int, Block]], nbytes: int) -> None:
        self.nbytes, self.blocks = nbytes, blocks

    def write(self, at: int, piece: Block) -> None:
        """Take bytes of the answer, which begin at its byte ``at``."""
        end = at + len(piece)
        for start, array in self.blocks:
            lo, hi = max(start, at), min(start + len(array), end)
            if lo < hi:
                array[lo - start : hi - start] = piece[lo - at : hi - at]


@dataclass(eq=False)
class Request:
    """A request to one server.

    Args:
        op: name of the request in the protocol.
        fields: fields of the header, without "seq" and the position of a piece.
        data: bytes that follow the header, in pieces: uint8; None: nothing follows.
        out: destination of the answer; None: the answer is kept in ``answer``.
        priority: larger ones are sent first.
        declare: true if the request is sent again to a server that was restarted.

    Attributes:
        future: result of the request: the version in the answer, or the error.
        missing: pieces of the answer that have not arrived; None before the first one.
    """

    op: str
    fields: dict[str, Any]
    data: Tensor | None = None
    out: ScatterSink | None = None
    priority: int = 0
    declare: bool = False
    future: Future[int] = field(default_factory=Future)
    seq: int = 0
    answer: bytearray | None = None
    missing: set[int] | None = None

    @property
    def acknowledged(self) -> bool:
        """True if the request was answered before, and is repeated."""
        return self.future.done() and not self.future.cancelled() and self.future.exception() is None

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """The order of sending, smallest first: declarations, then urgent requests, then those in one piece."""
        return not self.declare, -self.priority, self.pieces() > 1

    def topics(self) -> list[Any]:
        """List the topics that the request is about, in the order of its units: its pushes are kept under these."""
        if "items" in self.fields:
            return [topic_of(unit) for unit, *_ in self.fields["items"]]
        return [self.fields["key"]] if "key" in self.fields else []

    def pushed(self) -> list[tuple[Any, int]]:
        """List the topics and steps of a push, which is kept and sent again until they are on the server's disk."""
        return [(topic_of(unit), step) for unit, step, *_ in self.fields["items"]] if self.op == "push" else []

    def make_room(self, nbytes: int) -> bool:
        """Make room before the first piece of an answer; return False if the destination has another size."""
        if self.out is None or self.answer is not None:
            # Anew for an answer that comes again: the first may not have come to its end.
            self.answer = bytearray(nbytes)
            self.out = ScatterSink([(0, np.frombuffer(self.answer, np.uint8))], nbytes)
        return nbytes == self.out.nbytes

    def pieces(self) -> int:
        """Count the messages of the request."""
        return 1 if self.data is None else chunk_count(self.data.numel())

    def frames(self, piece: int) -> list[Any]:
        """Make the frames of one message."""
        if self.data is None:
            return [pack(self.op, seq=self.seq, **self.fields)]
        header = pack(self.op, seq=self.seq, chunk=piece, chunks=self.pieces(), **self.fields)
        return [header, self.data.numpy().data[piece * CHUNK : (piece + 1) * CHUNK]]


def topic_of(unit: Unit) -> Any:
    """Return the topic under which the pushes of a unit are kept: a key, or the number of a list, marked as one."""
    return ("list", unit[0]) if isinstance(unit, list) else unit
