"""Connections of a worker to its servers.

Invariants:
    * One thread owns the sockets.
    * Every request is answered or fails, and every wait has a deadline.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import weakref
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any

import zmq

from gradwire._system import Readings
from gradwire.errors import ConfigError, GroupError, WireError
from gradwire.kvstore.protocol.environment import WorkerPlace
from gradwire.kvstore.protocol.messages import VERSION, pack
from gradwire.kvstore.system import System
from gradwire.kvstore.worker.connection import Request, ServerConnection
from gradwire.notices import log

__all__ = ["Client"]


EXIT_TIMEOUT = 10.0
"""Seconds for which the end of a process waits until the servers have noted it; for one with a snapshot, longer by the
time that it may be away.
"""

REASON_TIMEOUT = 2.0
"""Seconds in which servers must say what an overdue request waits for."""

READING = 0.5
"""Seconds between two looks at the connections, at most; a longer time is one in which this process stood still."""

PING_INTERVAL = 1.0
"""Seconds between two pings, by which servers know that a worker is alive."""


class Client:
    """The connections to all servers, in a thread of their own.

    Args:
        place: this worker's place.
        sync: true if the store is synchronous.
        timeout: seconds that an answer may take, > 0.
        server_timeout: seconds that a server may be disconnected, > 0; None: the default of ``ServerConnection``.
        system: machine that the client runs on.
    """

    def __init__(
        self, place: WorkerPlace, *, sync: bool, timeout: float, server_timeout: float | None, system: System
    ) -> None:
        self.timeout = timeout
        self._system, self._clock = system, Readings(system.clock, READING)
        self._process = system.process()
        self._seq = itertools.count(1)
        self._inbox: queue.SimpleQueue[tuple[int, Request] | None] = queue.SimpleQueue()
        self._context = system.context()
        self._wakeup = self._context.socket(zmq.PAIR)
        self._wakeup.bind("inproc://wakeup")
        self._wakeup_lock = threading.Lock()
        self._failed: list[GroupError] = []
        """The reason for which the thread has ended, if it was not told to."""
        # Connected before the thread starts, because a message to a socket without a peer is lost.
        receiver = self._context.socket(zmq.PAIR)
        receiver.connect("inproc://wakeup")
        token = system.random(16)
        hello = partial(pack, "hello", version=VERSION, rank=place.rank, world=place.world, sync=sync, session=token)
        self._connections = [
            ServerConnection(
                self._context,
                f"server {index} at {endpoint}",
                endpoint,
                b"worker-%d-" % place.rank + token.hex().encode(),
                hello(server=index, servers=len(place.servers)),
                place.keys,
                server_timeout,
                self._clock,
            )
            for index, endpoint in enumerate(place.servers)
        ]
        arguments = (receiver, self._connections, self._inbox, timeout, system.poller(), self._clock, self._failed)
        thread = system.start(_serve, *arguments, name="gradwire-kvstore")
        shared = (self._context, self._inbox, self._wakeup, self._wakeup_lock)
        # A client that is forgotten ends its thread, too; a child of fork has no such thread to end.
        self._stop = weakref.finalize(self, _end, system, self._process, thread, *shared)

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return not self._stop.alive

    @property
    def forked(self) -> bool:
        """True in a child of the process that made the connections: their thread does not run there."""
        return self._system.process() != self._process

    def ask(self, server: int, request: Request) -> Future[int]:
        """Send a request; its future gets the version in the answer, or the error."""
        return self.ask_all([(server, request)])[0]

    def ask_all(self, requests: Sequence[tuple[int, Request]]) -> list[Future[int]]:
        """Send requests to servers; the other thread is woken once for all of them, as each wakeup switches threads."""
        # Refused here, because a request that nobody sends would only end by its timeout.
        if not self._stop.alive:
            raise ConfigError("the store was closed: it can no longer be used")
        if self.forked:
            raise ConfigError(
                "a store can be used by the process that created it, and not by its child of os.fork: create a store "
                "in each process, or start processes by 'spawn'"
            )
        for server, request in requests:
            request.seq = next(self._seq)
            self._inbox.put((server, request))
        if self._failed:
            _refuse(self._inbox, self._failed[0])
            raise GroupError(str(self._failed[0]))
        _wake(self._wakeup, self._wakeup_lock)
        return [request.future for _, request in requests]

    def wait(self, futures: Sequence[Future[int]], what: str) -> list[int]:
        """Wait for the results of all requests.

        Raises:
            GroupError: a request was not answered in time, or cannot be answered any more.
            ConfigError: a server refused a request.
        """
        done, waiting = self._system.wait(futures, self.timeout)
        for future in futures:
            # An error says more than a timeout, so it is raised first.
            if future in done:
                future.result()
        if waiting:
            raise GroupError(f"{what} was not answered within {self.timeout:g} s: {self._reason(waiting)}")
        return [future.result() for future in futures]

    def _reason(self, waiting: AbstractSet[Future[int]]) -> str:
        """Ask the servers what requests wait for; without an answer, describe the state of the connection."""
        asked: dict[int, Request] = {}
        for index, connection in enumerate(self._connections):
            # A copy, because the other thread removes requests that are answered.
            late = [each.seq for each in list(connection.unanswered.values()) if each.future in waiting]
            if late:
                asked[index] = Request("why", {"of": min(late)})
        # The caller has waited long enough: a server that answers nothing must not hold up the error.
        self._system.wait(self.ask_all(list(asked.items())), min(self.timeout, REASON_TIMEOUT))
        reasons = []
        for index, request in asked.items():
            text = bytes(request.answer or b"").decode(errors="replace").strip() if request.future.done() else ""
            reasons.append(text or self._connections[index].state(self._clock.now))
        return "; ".join(dict.fromkeys(reasons)) or "the answer came too late"

    def dead(self) -> set[int]:
        """Return the ranks of workers that some server considers dead."""
        return set().union(*(connection.dead for connection in self._connections))

    def silent(self, seconds: float) -> list[str]:
        """List the servers from which nothing has come for some seconds."""
        now = self._clock.now
        return [connection.endpoint for connection in self._connections if now - connection.heard > seconds]

    @property
    def bounded(self) -> bool:
        """True if a server bounds by how many steps a worker may be ahead."""
        return any(connection.bounded for connection in self._connections)

    def check_kept(self) -> None:
        """Refuse to go on where a server has lost what it had acknowledged, though it is asked for nothing now.

        Raises:
            GroupError: a server was restarted without its snapshot, or with an older copy of it.
        """
        for connection in self._connections:
            if connection.lost is not None:
                raise connection.lost

    def hurry(self) -> None:
        """Wait less for answers from now on: as long as a server with a snapshot may be away, and a little longer."""
        away = [each.server_timeout for each in self._connections if each.snapshots]
        self.timeout = min(self.timeout, EXIT_TIMEOUT + max(away, default=0.0))

    def snapshots(self) -> bool:
        """Return whether a server that keeps a snapshot may yet ask for a push again."""
        return self._stop.alive and not self.forked and any(each.snapshots for each in self._connections)

    def close(self) -> None:
        """Close the connections, and end the thread."""
        self._stop()


def _wake(wakeup: zmq.Socket[Any], lock: threading.Lock) -> None:
    """Wake the thread; if the socket is full, a thousand wakeups are waiting already, or the thread has ended."""
    # Any thread may make a request, and a socket of ZeroMQ may be used by one at a time.
    with lock, contextlib.suppress(zmq.Again):
        wakeup.send(b"", zmq.NOBLOCK)


def _serve(
    wakeup: zmq.Socket[Any],
    connections: list[ServerConnection],
    inbox: queue.SimpleQueue[tuple[int, Request] | None],
    timeout: float,
    poller: zmq.Poller,
    clock: Readings,
    failed: list[GroupError],
) -> None:
    pinged = clock.now - PING_INTERVAL
    for socket in (wakeup, *(connection.monitor.socket for connection in connections)):
        poller.register(socket, zmq.POLLIN)
    try:
        while True:
            for connection in connections:
                poller.register(connection.socket, connection.poll_flags)
            # No longer, so that pings are sent and deadlines are looked at while nothing arrives.
            poller.poll(int(1000 * READING / 2))
            if not _take_requests(wakeup, connections, inbox):
                return
            now = clock.read()
            ping, pinged = (True, now) if now - pinged > PING_INTERVAL else (False, pinged)
            for connection in connections:
                _attend(connection, ping, now, timeout)
    except Exception as error:
        # Nobody would answer what is asked for from now on, and every wait would last as long as it may.
        reason = f"the thread that talks to the servers has ended: {type(error).__name__}: {error}"
        failed.append(GroupError(reason))
        log.exception("%s", reason)
        _refuse(inbox, failed[0])
        for connection in connections:
            connection.fail(failed[0])
    finally:
        for connection in connections:
            # Whoever waits for an answer must not wait until the timeout.
            connection.fail(GroupError("the store was closed"))
            connection.close()
        wakeup.close(0)


def _attend(connection: ServerConnection, ping: bool, now: float, timeout: float) -> None:
    try:
        connection.handle_events()
        connection.read()
    except WireError as error:
        connection.fail(error)
    # Before the ping, which a server refuses from a worker that it does not know.
    connection.reintroduce(now)
    if ping and connection.up:
        connection.signal("ping")
    reason = connection.error(now, timeout)
    if reason is not None:
        connection.fail(reason)
    connection.write()


def _take_requests(
    wakeup: zmq.Socket[Any], connections: list[ServerConnection], inbox: queue.SimpleQueue[tuple[int, Request] | None]
) -> bool:
    """Take new requests; return False if the client was closed."""
    # All wakeups before the queue is read: a request that comes behind them brings its own.
    while wakeup.poll(0):
        wakeup.recv()
    while not inbox.empty():
        item = inbox.get()
        if item is None:
            return False
        server, request = item
        connections[server].add(request)
    return True


def _refuse(inbox: queue.SimpleQueue[tuple[int, Request] | None], error: GroupError) -> None:
    """Fail the requests that no thread takes any more."""
    with contextlib.suppress(queue.Empty):
        while True:
            item = inbox.get_nowait()
            if item is not None:
                with contextlib.suppress(InvalidStateError):
                    item[1].future.set_exception(error)


def _end(
    system: System,
    process: int,
    thread: threading.Thread,
    context: zmq.Context[Any],
    inbox: queue.SimpleQueue[Any],
    wakeup: zmq.Socket[Any],
    lock: threading.Lock,
) -> None:
    """End the thread and its connections, if this is the process that made them."""
    if system.process() != process:
        return
    # Behind all requests that were made before.
    inbox.put(None)
    _wake(wakeup, lock)
    ended = system.join(thread, 10.0)
    wakeup.close(0)
    if ended:
        context.term()
