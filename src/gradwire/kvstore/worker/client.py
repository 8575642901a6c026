"""Connections of a worker to its servers: one thread that owns the sockets, and requests that are answered or fail.

Nothing waits without a deadline.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from pathlib import Path
from typing import Any

import zmq

from gradwire.errors import ConfigError, GroupError, WireError
from gradwire.kvstore.protocol.messages import VERSION, pack
from gradwire.kvstore.worker.connection import Request, ServerConnection

__all__ = ["LASTING", "Client", "finish_at_exit"]

LASTING: list[Any] = []
"""Stores of this process."""

FAREWELL = 10.0
"""Seconds that the end of a process waits for the servers to take note of it."""

WHY = 2.0
"""Seconds that servers have to say what a request waits for whose deadline has passed."""

PING = 1.0
"""Seconds between two signs of life."""


class Client:
    """The connections to all servers, in a thread of their own.

    Args:
        endpoints: of the servers, in their order.
        rank: of this worker.
        world: how many workers there are.
        sync: the kind of store.
        timeout: seconds that an answer may take, > 0.
        keys: this worker's folder, made by ``gradwire keygen``.
        server_timeout: seconds that a server may be away, > 0; None: as ``ServerConnection`` has it.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        rank: int,
        world: int,
        *,
        sync: bool,
        timeout: float,
        keys: Path | None = None,
        server_timeout: float | None = None,
    ) -> None:
        self.timeout, self.endpoints = timeout, list(endpoints)
        self._seq = itertools.count(1)
        self._inbox: queue.SimpleQueue[tuple[int, Request] | None] = queue.SimpleQueue()
        self._context = zmq.Context()
        self._bell = self._context.socket(zmq.PAIR)
        self._bell.bind("inproc://bell")
        self._bell_lock = threading.Lock()
        # Connected here: a bell that is rung before anybody can hear it would be rung in vain.
        ear = self._context.socket(zmq.PAIR)
        ear.connect("inproc://bell")
        token = os.urandom(16)
        hello = pack("hello", version=VERSION, rank=rank, world=world, sync=sync, session=token)
        self._connections = [
            ServerConnection(
                self._context,
                f"server {index} at {endpoint}",
                endpoint,
                b"worker-%d-" % rank + token.hex().encode(),
                hello,
                keys,
                server_timeout,
            )
            for index, endpoint in enumerate(endpoints)
        ]
        arguments = (ear, self._connections, self._inbox, timeout)
        thread = threading.Thread(target=_serve, args=arguments, name="gradwire-kvstore", daemon=True)
        thread.start()
        self._stop = weakref.finalize(self, _end, self._inbox, self._bell, self._bell_lock, thread, self._context)

    def ask(self, server: int, request: Request) -> Future[int]:
        """Send a request; its future gets the key's version, or the error."""
        return self.ask_all([(server, request)])[0]

    def ask_all(self, requests: Sequence[tuple[int, Request]]) -> list[Future[int]]:
        """Send requests to servers. The other thread is woken once for all of them, because each time costs a change of
        threads.
        """
        if not self._stop.alive:
            raise ConfigError("the store was closed: it can no longer be used")
        for server, request in requests:
            request.seq = next(self._seq)
            self._inbox.put((server, request))
        _ring(self._bell, self._bell_lock)
        return [request.future for _, request in requests]

    def wait(self, futures: Sequence[Future[int]], what: str) -> list[int]:
        """Wait for the results of all requests.

        Raises:
            GroupError: one was not answered in time, or cannot be any more.
            ConfigError: a server refused one.
        """
        done, waiting = wait(futures, self.timeout, FIRST_EXCEPTION)
        for future in done:
            future.result()
        if waiting:
            raise GroupError(f"{what} was not answered within {self.timeout:g} s: {self._why(waiting)}")
        return [future.result() for future in futures]

    def _why(self, waiting: AbstractSet[Future[int]]) -> str:
        """Say what requests wait for, as their servers say it now, or else the state of the connection."""
        asked: dict[int, Request] = {}
        for index, connection in enumerate(self._connections):
            # A copy in one go: the other thread takes out what is answered.
            late = [each.seq for each in list(connection.unanswered.values()) if each.future in waiting]
            if late:
                asked[index] = Request("why", {"of": min(late)})
        wait(self.ask_all(list(asked.items())), min(self.timeout, WHY))
        told = []
        for index, request in asked.items():
            text = bytes(request.answer or b"").decode(errors="replace").strip() if request.future.done() else ""
            told.append(text or self._connections[index].state(time.monotonic()))
        return "; ".join(dict.fromkeys(told)) or "the answer came too late"

    def dead(self) -> set[int]:
        """The ranks of workers that a server has not heard of."""
        return set().union(*(connection.dead for connection in self._connections))

    def silent(self, seconds: float) -> list[str]:
        """The servers that have not answered for so long."""
        return [
            connection.endpoint for connection in self._connections if time.monotonic() - connection.heard > seconds
        ]

    def close(self) -> None:
        self._stop()


def _ring(bell: zmq.Socket[Any], lock: threading.Lock) -> None:
    """Wake the thread. If the bell cannot be rung, a thousand rings wait for it already, or it has ended."""
    with lock, contextlib.suppress(zmq.Again):
        bell.send(b"", zmq.NOBLOCK)


def _serve(
    bell: zmq.Socket[Any],
    connections: list[ServerConnection],
    inbox: queue.SimpleQueue[tuple[int, Request] | None],
    timeout: float,
) -> None:
    pinged, poller = 0.0, zmq.Poller()
    for socket in (bell, *(connection.door.monitor for connection in connections)):
        poller.register(socket, zmq.POLLIN)
    try:
        while True:
            for connection in connections:
                poller.register(connection.socket, connection.wants)
            poller.poll(250)
            if not _drain(bell, connections, inbox):
                return
            now = time.monotonic()
            ping, pinged = (True, now) if now - pinged > PING else (False, pinged)
            for connection in connections:
                _attend(connection, ping, now, timeout)
    finally:
        for connection in connections:
            connection.fail(GroupError("the store was closed"))
            connection.close()
        bell.close(0)


def _attend(connection: ServerConnection, ping: bool, now: float, timeout: float) -> None:
    try:
        connection.events()
        connection.read()
    except WireError as error:
        connection.fail(error)
    connection.insist(now)
    if ping and connection.up:
        connection.say("ping")
    trouble = connection.trouble(now, timeout)
    if trouble is not None:
        connection.fail(trouble)
    connection.write()


def _drain(
    bell: zmq.Socket[Any], connections: list[ServerConnection], inbox: queue.SimpleQueue[tuple[int, Request] | None]
) -> bool:
    """Take new requests; return False if there will be no more."""
    while bell.poll(0):
        bell.recv()
    while not inbox.empty():
        item = inbox.get()
        if item is None:
            return False
        server, request = item
        connections[server].add(request)
    return True


def _end(
    inbox: queue.SimpleQueue[Any],
    bell: zmq.Socket[Any],
    lock: threading.Lock,
    thread: threading.Thread,
    context: zmq.Context[Any],
) -> None:
    inbox.put(None)
    _ring(bell, lock)
    if thread is not threading.current_thread():
        thread.join(10.0)
    bell.close(0)
    if not thread.is_alive():
        context.term()


def finish_at_exit(store: weakref.ref[Any], client: weakref.ref[Client]) -> None:
    """Say at exit that a script ended without an error, because the others would wait for its next push.

    One that an exception ended does not: its part of the steps to come is missing, as that of one that was killed.
    """
    ending, asking = store(), client()
    if ending is None or asking is None or hasattr(sys, "last_value"):
        return
    asking.timeout = min(asking.timeout, FAREWELL)
    # The process ends whatever happens, and the servers notice that in any case.
    with contextlib.suppress(Exception):
        ending.finish()
    ending.close()
