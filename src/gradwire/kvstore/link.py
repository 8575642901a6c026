"""A worker's connections to its servers: one thread that owns the sockets, and requests that are answered or fail.

A request is sent in pieces, larger priorities first, and again whenever the connection was lost before its answer; the
servers know what they have had. After a server was restarted from its snapshot the worker says again what it had told
it (compressions, optimizers), and pushes again what the snapshot has not. Nothing waits without a deadline.
"""

from __future__ import annotations

import heapq
import itertools
import os
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from zmq.utils.monitor import parse_monitor_message

from gradwire.errors import ConfigError, GroupError, WireError
from gradwire.kvstore.keygen import lock_worker
from gradwire.kvstore.protocol import CHUNK, REPLIES, VERSION, pack, unpack
from gradwire.kvstore.request import Request

__all__ = ["Links"]

PING = 1.0
"""Seconds between two signs of life."""

QUEUED = 16
"""Messages that a socket may hold: what is in it can no longer be overtaken."""


class Link:
    """The connection to one server; used by the thread of ``Links`` alone."""

    def __init__(self, context: zmq.Context[Any], endpoint: str, name: bytes, hello: bytes, keys: Path | None) -> None:
        self.endpoint, self.hello = endpoint, hello
        self.socket = context.socket(zmq.DEALER)
        for option, value in ((zmq.IDENTITY, name), (zmq.LINGER, 1000), (zmq.SNDHWM, QUEUED), (zmq.RCVHWM, 0),
                              (zmq.RECONNECT_IVL, 50), (zmq.RECONNECT_IVL_MAX, 500)):  # fmt: skip
            self.socket.setsockopt(option, value)
        if keys is not None:
            lock_worker(self.socket, keys)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self.socket.connect(endpoint)
        self.up, self.epoch = False, b""
        self.heard = time.monotonic()
        self.dead: set[int] = set()
        self.unanswered: dict[int, Request] = {}
        self.declared: list[Request] = []
        self.log: dict[Any, dict[int, Request]] = {}
        self._heap: list[tuple[int, int, Request, int]] = []
        self._order = itertools.count()

    def add(self, request: Request) -> None:
        self.unanswered[request.seq] = request
        if request.declare:
            self.declared = [each for each in self.declared if self._may_be_named(each)] + [request]
        if request.log is not None:
            key, step = request.log
            self.log.setdefault(key, {})[step] = request
        if self.up:
            self._queue(request)

    @property
    def wants(self) -> int:
        return zmq.POLLIN | (zmq.POLLOUT if self.up and self._heap else 0)

    def write(self) -> None:
        """Send until the socket is full."""
        while self.up and self._heap:
            _, _, request, piece = self._heap[0]
            try:
                self.socket.send_multipart(request.frames(piece), zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            heapq.heappop(self._heap)
            if piece + 1 < request.pieces():
                heapq.heappush(self._heap, (-request.priority, next(self._order), request, piece + 1))

    def events(self) -> None:
        """Connected: introduce this worker; disconnected: whatever was on its way may be lost."""
        while self.monitor.poll(0):
            event = parse_monitor_message(self.monitor.recv_multipart())["event"]
            self.up, self._heap = False, []
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.socket.send(self.hello)

    def say(self, op: str) -> None:
        try:
            self.socket.send(pack(op), zmq.NOBLOCK)
        except zmq.Again:
            return

    def read(self) -> None:
        """Take what has come.

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
        """Nothing more will be answered."""
        for request in list(self.unanswered.values()):
            self._finish(request, error=error)

    def close(self) -> None:
        if self.up:
            self.say("leave")
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close()

    def _welcome(self, rest: list[memoryview], epoch: bytes, rank: int, world: int, restored: bool) -> None:
        another, self.epoch = self.epoch not in (b"", epoch), epoch
        if another and not restored:
            text = f"the server at {self.endpoint} was restarted without a snapshot: its values are lost"
            self.fail(GroupError(text))
        self.up, self._heap = True, []
        again = {request.seq: request for request in self.declared} if another else {}
        if another:
            again |= {request.seq: request for steps in self.log.values() for request in steps.values()}
        for _, request in sorted((again | self.unanswered).items()):
            self.unanswered[request.seq] = request
            self._queue(request)

    def _may_be_named(self, request: Request) -> bool:
        """Whether a push that may have to be sent again names this declaration; settings may change in every step."""
        if request.op != "optimizer":
            return True
        pushes = (push for steps in self.log.values() for push in steps.values())
        oldest: int = min((push.fields["optimizer"] for push in pushes), default=2**62)
        number: int = request.fields["number"]
        return number >= oldest

    def _queue(self, request: Request) -> None:
        request.missing = None
        heapq.heappush(self._heap, (-request.priority, next(self._order), request, 0))

    def _done(self, rest: list[memoryview], seq: int, version: int, durable: int) -> None:
        request = self.unanswered.get(seq)
        if request is not None:
            self._forget(request, durable)
            self._finish(request, version)

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
            if request.out is None:
                request.answer = bytearray(nbytes)
            elif request.out.numel() != nbytes:
                self._finish(request, error=WireError(f"a value has {nbytes} bytes, not {request.out.numel()}"))
                return
        into = np.frombuffer(request.answer or b"", np.uint8) if request.out is None else request.out.numpy()
        piece = np.frombuffer(rest[0], np.uint8) if rest else np.empty(0, np.uint8)
        if chunk * CHUNK + len(piece) > nbytes:
            raise WireError(f"piece {chunk} of a value ends beyond its {nbytes} bytes")
        np.copyto(into[chunk * CHUNK : chunk * CHUNK + len(piece)], piece)
        request.missing.discard(chunk)
        if not request.missing:
            self._forget(request, durable)
            self._finish(request, version)

    def _error(self, rest: list[memoryview], seq: int, kind: str, text: str) -> None:
        kinds: dict[str, type[Exception]] = {"config": ConfigError, "wire": WireError}
        error = kinds.get(kind, GroupError)(f"server at {self.endpoint}: {text}")
        if seq in self.unanswered:
            self._finish(self.unanswered[seq], error=error)
        else:
            self.fail(error)

    def _pong(self, rest: list[memoryview], dead: list[int]) -> None:
        self.dead = set(dead)

    def _forget(self, request: Request, durable: int) -> None:
        """Drop the pushes of the request's key that the server will not ask for again."""
        steps = self.log.get(request.fields.get("key"), {})
        for step in [step for step in steps if step <= durable]:
            del steps[step]

    def _finish(self, request: Request, version: int = 0, error: Exception | None = None) -> None:
        self.unanswered.pop(request.seq, None)
        if request.future.done():
            return
        if error is None:
            request.future.set_result(version)
        else:
            request.future.set_exception(error)


class Links:
    """The connections to all servers, in a thread of their own.

    Args:
        endpoints: of the servers, in their order.
        rank: of this worker.
        world: how many workers there are.
        sync: the kind of store.
        timeout: seconds that an answer may take, > 0.
        keys: this worker's folder, made by ``gradwire keygen``.
    """

    def __init__(
        self, endpoints: Sequence[str], rank: int, world: int, *, sync: bool, timeout: float,
        keys: Path | None = None,
    ) -> None:  # fmt: skip
        self.timeout, self.endpoints = timeout, list(endpoints)
        self._seq = itertools.count(1)
        self._inbox: queue.SimpleQueue[tuple[int, Request] | None] = queue.SimpleQueue()
        self._context = zmq.Context()
        self._bell = self._context.socket(zmq.PAIR)
        self._bell.bind("inproc://bell")
        self._bell_lock = threading.Lock()
        token = os.urandom(16)
        hello = pack("hello", version=VERSION, rank=rank, world=world, sync=sync, session=token)
        self._links = [
            Link(self._context, endpoint, b"worker-%d-" % rank + token.hex().encode(), hello, keys)
            for endpoint in endpoints
        ]
        arguments = (self._context, self._links, self._inbox, timeout)
        thread = threading.Thread(target=_serve, args=arguments, name="gradwire-kvstore", daemon=True)
        thread.start()
        self._stop = weakref.finalize(self, _end, self._inbox, self._bell, self._bell_lock, thread, self._context)

    def ask(self, server: int, request: Request) -> Future[int]:
        """Send a request; its future gets the key's version, or the error."""
        if not self._stop.alive:
            raise ConfigError("the store was closed: it can no longer be used")
        request.seq = next(self._seq)
        self._inbox.put((server, request))
        with self._bell_lock:
            self._bell.send(b"")
        return request.future

    def wait(self, futures: Sequence[Future[int]], what: str) -> list[int]:
        """The results of all.

        Raises:
            GroupError: one was not answered in time, or cannot be any more.
            ConfigError: a server refused one.
        """
        deadline = time.monotonic() + self.timeout
        results = []
        for future in futures:
            try:
                results.append(future.result(max(deadline - time.monotonic(), 0.001)))
            except TimeoutError:
                raise GroupError(f"{what} was not answered within {self.timeout:g} s") from None
        return results

    def dead(self) -> set[int]:
        """Workers that a server has not heard of."""
        return set().union(*(link.dead for link in self._links))

    def silent(self, seconds: float) -> list[str]:
        """Servers that have not answered for so long."""
        return [link.endpoint for link in self._links if time.monotonic() - link.heard > seconds]

    def close(self) -> None:
        self._stop()


def _serve(
    context: zmq.Context[Any], links: list[Link], inbox: queue.SimpleQueue[tuple[int, Request] | None], timeout: float
) -> None:
    bell = context.socket(zmq.PAIR)
    bell.connect("inproc://bell")
    pinged = 0.0
    try:
        while True:
            poller = zmq.Poller()
            poller.register(bell, zmq.POLLIN)
            for link in links:
                poller.register(link.socket, link.wants)
                poller.register(link.monitor, zmq.POLLIN)
            poller.poll(250)
            if not _drain(bell, links, inbox):
                return
            now = time.monotonic()
            ping, pinged = (True, now) if now - pinged > PING else (False, pinged)
            for link in links:
                _attend(link, ping, now, timeout)
    finally:
        for link in links:
            link.fail(GroupError("the store was closed"))
            link.close()
        bell.close(0)


def _attend(link: Link, ping: bool, now: float, timeout: float) -> None:
    try:
        link.events()
        link.read()
    except WireError as error:
        link.fail(error)
    if ping and link.up:
        link.say("ping")
    if link.unanswered and now - link.heard > timeout:
        link.fail(GroupError(f"the server at {link.endpoint} has not been heard of for {timeout:g} s"))
    link.write()


def _drain(bell: zmq.Socket[Any], links: list[Link], inbox: queue.SimpleQueue[tuple[int, Request] | None]) -> bool:
    """Take new requests; False: there will be no more."""
    while bell.poll(0):
        bell.recv()
    while not inbox.empty():
        item = inbox.get()
        if item is None:
            return False
        server, request = item
        links[server].add(request)
    return True


def _end(
    inbox: queue.SimpleQueue[Any], bell: zmq.Socket[Any], lock: threading.Lock, thread: threading.Thread,
    context: zmq.Context[Any],
) -> None:  # fmt: skip
    inbox.put(None)
    with lock:
        bell.send(b"")
    if thread is not threading.current_thread():
        thread.join(10.0)
    bell.close(0)
    if not thread.is_alive():
        context.term()
