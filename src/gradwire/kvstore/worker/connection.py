"""Connection of a worker to one server.

A request is sent in pieces, larger priorities first and short requests before long ones, and again whenever the
connection was lost before its answer; the server knows what it has had. After the server was restarted from its
snapshot the worker says again what it had told it (compressions, optimizers), and pushes again what the snapshot has
not.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import zmq
from torch import Tensor

from gradwire.errors import ConfigError, GradwireError, GroupError, WireError
from gradwire.kvstore.protocol.messages import CHUNK, MAX_OPEN, REPLIES, chunk_count, pack, unpack
from gradwire.kvstore.protocol.small_keys import Unit
from gradwire.kvstore.worker.handshake import Door, lock_worker

__all__ = ["Request", "ScatterSink", "ServerConnection"]

AGAIN = 0.5
"""Seconds after which a worker whose place was taken introduces itself again."""

PATIENCE = 8.0
"""Seconds after which it gives up: whoever has its place is alive."""

AWAY = 8.0
"""Seconds without a connection after which a server is gone, as silent workers are by default after as many."""

RESTART = 30.0
"""Seconds in which a server that keeps a snapshot may come again."""

BEAT, SILENT = 2000, 15000
"""Milliseconds between two heartbeats of ZeroMQ's own threads, which answer while a server computes, and those after
which a connection without any is over: a machine without power does not say that it ends."""

log = logging.getLogger("gradwire")

QUEUED = 16
"""Messages that a socket may hold: what is in it can no longer be overtaken."""


Block: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"


class ServerConnection:
    """The connection to one server; used by one thread alone.

    Args:
        context: of the sockets.
        who: the server in words, with its address: "server 0 at tcp://127.0.0.1:7000".
        endpoint: of the server.
        name: of this worker, as the server sees it.
        hello: the introduction.
        keys: this worker's folder.
        grace: seconds that the server may be away before what was asked of it fails; None: ``AWAY``, or ``RESTART``
            where it keeps a snapshot from which it may come again.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        who: str,
        endpoint: str,
        name: bytes,
        hello: bytes,
        keys: Path | None,
        grace: float | None = None,
    ) -> None:
        self.who, self.endpoint, self.hello = who, endpoint, hello
        self.socket = context.socket(zmq.DEALER)
        for option, value in (
            (zmq.IDENTITY, name),
            (zmq.LINGER, 1000),
            (zmq.SNDHWM, QUEUED),
            (zmq.RCVHWM, 0),
            (zmq.RECONNECT_IVL, 50),
            (zmq.RECONNECT_IVL_MAX, 500),
            (zmq.HEARTBEAT_IVL, BEAT),
            (zmq.HEARTBEAT_TIMEOUT, SILENT),
        ):
            self.socket.setsockopt(option, value)
        if keys is not None:
            lock_worker(self.socket, keys)
        self.door = Door(self.socket, who, keys)
        self.socket.connect(endpoint)
        self._grace, self._snapshots, self._told_away = grace, False, False
        self.up, self.epoch = False, b""
        self._lost: GroupError | None = None
        self._owed = False
        self._refused: tuple[float, float] | None = None
        self.heard = time.monotonic()
        self.dead: set[int] = set()
        self.unanswered: dict[int, Request] = {}
        self.declared: list[Request] = []
        self.log: dict[Any, dict[int, Request]] = {}
        self._lists: dict[Any, set[Any]] = {}
        self._lists_of: dict[Any, list[Any]] = {}
        self._reached: dict[Any, dict[Any, int]] = {}
        self._heap: list[tuple[tuple[bool, int, bool], int, Request, int]] = []
        self._begun = 0
        self._order = itertools.count()

    def add(self, request: Request) -> None:
        self.unanswered[request.seq] = request
        if request.declare:
            self.declared = [*self._may_be_named(), request]
        for key, step in request.logged():
            self.log.setdefault(key, {})[step] = request
        if request.op == "join":
            many = "list", request.fields["number"]
            self._lists[many] = set(request.fields["keys"])
            for key in request.fields["keys"]:
                self._lists_of.setdefault(key, []).append(many)
        if self.up:
            self._queue(request)

    @property
    def wants(self) -> int:
        return zmq.POLLIN | (zmq.POLLOUT if self._owed or (self.up and self._heap) else 0)

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
                self._begun += not piece
                # In the same place: what was begun first is complete first, and few are under way at a time.
                self._heap[at] = (rank, order, request, piece + 1)
                continue
            self._begun -= piece > 0
            if at:
                del self._heap[at]
                heapq.heapify(self._heap)
            else:
                heapq.heappop(self._heap)

    def _next(self) -> int:
        """Find the next piece in the heap, within the server's limit for messages in pieces."""
        _, _, request, piece = self._heap[0]
        if piece or request.pieces() == 1 or self._begun < MAX_OPEN:
            return 0
        return min((i for i, each in enumerate(self._heap) if each[3]), key=lambda i: self._heap[i][:2])

    def events(self) -> None:
        """Handle events: introduce this worker when connected; count messages on the way as lost when disconnected."""
        for opened in self.door.events():
            self.up, self._heap, self._begun = False, [], 0
            if opened:
                self._introduce()

    @property
    def grace(self) -> float:
        """The seconds for which the server may be away."""
        return self._grace or (RESTART if self._snapshots else AWAY)

    def trouble(self, now: float, timeout: float) -> GradwireError | None:
        """The reason why nothing will be answered; None while something may be.

        Args:
            now: by ``time.monotonic()``.
            timeout: seconds that a server may be connected and silent.
        """
        if self.door.refusal:
            return ConfigError(self.door.refusal)
        away = self.door.away(now)
        if away > self.grace:
            return GroupError(f"{self.who} has been away for {away:.1f} s: {self._remedy()}")
        if away > AWAY and not self._told_away:
            self._told_away = True
            log.warning("%s has been away for %.1f s: %s", self.who, away, self._remedy())
        if now - self.heard > timeout:
            return GroupError(f"{self.who} has not been heard of for {timeout:g} s: {self.state(now)}")
        return None

    def state(self, now: float) -> str:
        """Describe the state of the connection in words."""
        if not self.door.opened:
            return f"{self.who} never answered: is it started, and is that its address?"
        if self.door.lost is not None:
            return f"{self.who} has been away for {self.door.away(now):.1f} s"
        return f"{self.who} is connected, and was last heard of {now - self.heard:.1f} s ago"

    def _remedy(self) -> str:
        if not self._snapshots:
            return (
                "it keeps no snapshot, so its values are lost if it has ended. Start the run again, with --snapshot "
                "FILE of `gradwire server` if it is to survive this; GRADWIRE_SERVER_TIMEOUT (seconds) says how long a "
                f"lost connection is waited for, now {self.grace:g}"
            )
        return (
            "start it again at this address with the --snapshot file that it had, and training goes on; "
            f"GRADWIRE_SERVER_TIMEOUT (seconds) says how long that is waited for, now {self.grace:g}"
        )

    def insist(self, now: float) -> None:
        """Introduce this worker again if its place was taken.

        By the process before it, as a rule, of which the server has not noticed yet that it is gone.
        """
        if self._refused is not None and now - self._refused[1] > AGAIN:
            self._refused = (self._refused[0], now)
            self._owed = True
        if self._owed:
            self._introduce()

    def _introduce(self) -> None:
        self.up, self._heap, self._begun, self._owed = False, [], 0, True
        with contextlib.suppress(zmq.Again):
            self.socket.send(self.hello, zmq.NOBLOCK)
            self._owed = False

    def say(self, op: str) -> None:
        try:
            self.socket.send(pack(op), zmq.NOBLOCK)
        except zmq.Again:
            return

    def read(self) -> None:
        """Read the messages that have come.

        Raises:
            WireError: the server sends what the protocol does not allow.
        """
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            op, fields, rest = unpack([frame.buffer for frame in frames], REPLIES)
            self.heard = time.monotonic()
            getattr(self, f"_{op}")(rest, **fields)

    def fail(self, error: Exception) -> None:
        """Fail all requests, because nothing more will be answered."""
        for request in list(self.unanswered.values()):
            self._finish(request, error=error)

    def close(self) -> None:
        if self.up:
            self.say("leave")
        self.door.close()
        self.socket.close()

    def _welcome(
        self, rest: list[memoryview], epoch: bytes, rank: int, world: int, restored: bool, snapshots: bool
    ) -> None:
        another, self.epoch = self.epoch not in (b"", epoch), epoch
        self._snapshots, self._told_away = snapshots, False
        if another and not restored:
            self._lost = GroupError(f"{self.who} was restarted without a snapshot: its values are lost")
            self.fail(self._lost)
        self.up, self._heap, self._begun, self._refused = True, [], 0, None
        again = {request.seq: request for request in self.declared} if another else {}
        if another:
            again |= {request.seq: request for steps in self.log.values() for request in steps.values()}
        for _, request in sorted((again | self.unanswered).items()):
            self.unanswered[request.seq] = request
            self._queue(request)

    def _may_be_named(self) -> list[Request]:
        """Keep the declarations that a push may name, or one that is sent again; settings may change in every step."""
        settings = [each.fields["number"] for each in self.declared if each.op == "optimizer"]
        if not settings:
            return self.declared
        pushes = (push.fields["optimizer"] for steps in self.log.values() for push in steps.values())
        oldest = min(pushes, default=max(settings))
        return [each for each in self.declared if each.op != "optimizer" or each.fields["number"] >= oldest]

    def _queue(self, request: Request) -> None:
        request.missing = None
        heapq.heappush(self._heap, (request.rank, next(self._order), request, 0))

    def _done(self, rest: list[memoryview], seq: int, version: int, durable: int) -> None:
        request = self.unanswered.get(seq)
        if request is not None:
            self._forget(request.topic, durable)
            self._finish(request, version)

    def _dones(self, rest: list[memoryview], seq: int, durable: list[int]) -> None:
        request = self.unanswered.get(seq)
        if request is not None:
            self._forget_all(request, durable)
            self._finish(request)

    def _values(
        self, rest: list[memoryview], seq: int, chunk: int, chunks: int, nbytes: int, durable: list[int]
    ) -> None:
        request = self.unanswered.get(seq)
        self._value(rest, seq, chunk, chunks, 0, 0, nbytes)
        if request is not None:
            self._forget_all(request, durable)

    def _value(
        self, rest: list[memoryview], seq: int, chunk: int, chunks: int, version: int, durable: int, nbytes: int
    ) -> None:
        request = self.unanswered.get(seq)
        if request is None:
            return
        if request.future.cancelled():
            del self.unanswered[seq]
            return
        if request.missing is None:
            request.missing = set(range(chunks))
            if not request.make_room(nbytes):
                self._finish(request, error=WireError(f"a value has {nbytes} bytes, which do not fit"))
                return
        piece = np.frombuffer(rest[0], np.uint8) if rest else np.empty(0, np.uint8)
        if chunk * CHUNK + len(piece) > nbytes:
            raise WireError(f"piece {chunk} of a value ends beyond its {nbytes} bytes")
        request.take(chunk * CHUNK, piece)
        request.missing.discard(chunk)
        if not request.missing:
            self._forget(request.topic, durable)
            self._finish(request, version)

    def _error(self, rest: list[memoryview], seq: int, kind: str, text: str) -> None:
        if kind == "hello":
            # What lay in the socket when the connection was made anew has overtaken the introduction.
            if self.up:
                self._introduce()
            return
        if kind == "taken":
            now = time.monotonic()
            since = now if self._refused is None else self._refused[0]
            self._refused = (since, now)
            if now - since < PATIENCE:
                return
        kinds: dict[str, type[Exception]] = {"config": ConfigError, "wire": WireError}
        # A server that has lost everything may answer what is asked later: what it does not know is no news.
        error = self._lost or kinds.get(kind, GroupError)(f"{self.who}: {text}")
        if seq in self.unanswered:
            self._finish(self.unanswered[seq], error=error)
        else:
            self.fail(error)

    def _pong(self, rest: list[memoryview], dead: list[int]) -> None:
        self.dead = set(dead)

    def _forget(self, topic: Any, durable: int) -> None:
        """Drop the pushes of a key, or of a list of keys, that the server will not ask for again."""
        keys = self._lists.get(topic, {topic})
        for each in (topic, *keys):
            self._drop(each, durable)
        # Keys of a list that go alone now, or in another list: when each of them is so far, the list's own pushes are.
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

    def _forget_all(self, request: Request, durable: list[int]) -> None:
        for item, step in zip(request.fields["items"], durable, strict=False):
            self._forget(topic_of(item[0]), step)

    def _finish(self, request: Request, version: int = 0, error: Exception | None = None) -> None:
        self.unanswered.pop(request.seq, None)
        if request.future.done():
            return
        # Who waited may cancel it at this moment.
        with contextlib.suppress(InvalidStateError):
            if error is None:
                request.future.set_result(version)
            else:
                request.future.set_exception(error)


class ScatterSink:
    """A sink for one answer that fills several tensors: bytes go directly to their tensor, without a copy.

    Args:
        places: where the bytes of each tensor are in the answer, and its memory.
        nbytes: of the answer.
    """

    def __init__(self, places: Sequence[tuple[int, Block]], nbytes: int) -> None:
        self.nbytes, self._places = nbytes, places

    def write(self, at: int, piece: Block) -> None:
        """Take bytes of the answer, which begin at its byte ``at``."""
        end = at + len(piece)
        for start, array in self._places:
            lo, hi = max(start, at), min(start + len(array), end)
            if lo < hi:
                array[lo - start : hi - start] = piece[lo - at : hi - at]


@dataclass(eq=False)
class Request:
    """A request to one server.

    Args:
        op: as in the protocol.
        fields: of the header, without "seq" and the place of a piece.
        data: uint8 that follows, in pieces; None: nothing.
        out: uint8, or several tensors, that the answer fills; None: its bytes are handed over as they are.
        priority: larger ones go first.
        log: a push: kept and sent again until its step is on the server's disk.
        declare: sent again to a server that was restarted.
    """

    op: str
    fields: dict[str, Any]
    data: Tensor | None = None
    out: Tensor | ScatterSink | None = None
    priority: int = 0
    log: tuple[Any, int] | None = None
    declare: bool = False
    future: Future[int] = field(default_factory=Future)
    seq: int = 0
    answer: bytearray | None = None
    missing: set[int] | None = None

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """The priority, smallest first: declarations that others may name, then urgent requests, then short ones."""
        return not self.declare, -self.priority, self.pieces() > 1

    @property
    def topic(self) -> Any:
        """The topic under which pushes are kept."""
        return self.fields.get("key")

    def make_room(self, nbytes: int) -> bool:
        """Make room before the first piece of an answer; return False if it has another size."""
        if self.out is None:
            self.answer = bytearray(nbytes)
            return True
        return nbytes == (self.out.numel() if isinstance(self.out, Tensor) else self.out.nbytes)

    def take(self, at: int, piece: Block) -> None:
        """Take bytes of the answer, which begin at its byte ``at``."""
        if self.out is not None and not isinstance(self.out, Tensor):
            self.out.write(at, piece)
            return
        into = np.frombuffer(self.answer or b"", np.uint8) if self.out is None else self.out.numpy()
        np.copyto(into[at : at + len(piece)], piece)

    def logged(self) -> list[tuple[Any, int]]:
        """The topics and steps of the pushes in the request."""
        if self.op == "pushes":
            return [(topic_of(unit), step) for unit, step, _ in self.fields["items"]]
        return [] if self.log is None else [self.log]

    def pieces(self) -> int:
        return 1 if self.data is None else chunk_count(self.data.numel())

    def frames(self, piece: int) -> list[Any]:
        if self.data is None:
            return [pack(self.op, seq=self.seq, **self.fields)]
        header = pack(self.op, seq=self.seq, chunk=piece, chunks=self.pieces(), **self.fields)
        return [header, self.data.numpy().data[piece * CHUNK : (piece + 1) * CHUNK]]


def topic_of(unit: Unit) -> Any:
    """The topic under which the pushes of a unit are kept: that of a key, or of a list of keys by its number."""
    return ("list", unit[0]) if isinstance(unit, list) else unit
