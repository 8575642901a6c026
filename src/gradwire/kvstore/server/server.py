"""A server process: the core, a ROUTER socket, a clock, and the conditions under which it ends.

Invariants:
    * A message is sent at once where the connection takes it, and later where it is full.
    * The bytes that wait for one worker are bounded, whatever it asks for, and no other worker waits for it. A worker
      that does not read is cut off.

Why:
    glibc gives freed memory back to the system as soon as a few megabytes lie free at the end of a heap. Messages of a
    megabyte that come and go would then be written to fresh pages again and again, which costs more than to receive
    them. So a process that only serves keeps its memory (``keep_memory``).
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from gradwire._system import Readings
from gradwire.errors import ConfigError
from gradwire.kvstore.protocol.messages import CHUNK, MAX_HEADER, Outgoing
from gradwire.kvstore.server.access import Guard, listen, ranks_of
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.system import SYSTEM, System

__all__ = ["Finished", "Server", "keep_memory"]

QUEUED = 64
"""Messages that a connection may hold in either direction, besides what lies in the kernel."""

ROOM = 64 * 2**20
"""Bytes that may wait for one worker besides twice all values: it asks for a value once at a time."""

OVERHEAD = 512
"""Bytes that a waiting message takes besides its frames."""


class Outbox:
    """A queue of messages to send on a ROUTER socket with ``ROUTER_MANDATORY``.

    Args:
        socket: socket of the server.
        stored: bytes of all values, now.
    """

    def __init__(self, socket: zmq.Socket[Any], stored: Callable[[], int]) -> None:
        self._socket, self._stored = socket, stored
        self._waiting: dict[bytes, deque[list[Any]]] = {}
        self._nbytes: dict[bytes, int] = {}
        self.unreachable: set[bytes] = set()
        """Workers to which a message could not be sent; the caller empties it."""
        self.overfull: set[bytes] = set()
        """Workers that have more waiting than they can have asked for; the caller empties it."""

    def __bool__(self) -> bool:
        """Return whether a message waits."""
        return bool(self._waiting)

    def put(self, peer: bytes, frames: list[Any]) -> None:
        """Send a message, after those that already wait for the same worker."""
        # Only if nothing waits, because the messages of a worker must keep their order.
        if peer not in self._waiting and self._sent(peer, frames):
            return
        nbytes = OVERHEAD + sum(map(len, frames))
        self._nbytes[peer] = self._nbytes.get(peer, 0) + nbytes
        if self._nbytes[peer] > ROOM + 2 * self._stored():
            self._drop(peer)
            # It does not read what it has asked for, and more would only take memory.
            self.overfull.add(peer)
            return
        self._waiting.setdefault(peer, deque()).append(frames)

    def flush(self) -> None:
        """Send the messages that can be sent now."""
        for peer, frames in list(self._waiting.items()):
            while frames and self._sent(peer, frames[0]):
                self._nbytes[peer] -= OVERHEAD + sum(map(len, frames.popleft()))
            if not frames or peer in self.unreachable:
                self._drop(peer)

    def _sent(self, peer: bytes, frames: list[Any]) -> bool:
        """Return whether a message is done with: sent, or never to be sent."""
        try:
            self._socket.send_multipart([peer, *frames], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            # A worker that cannot be reached connects again and asks again.
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self.unreachable.add(peer)
        return True

    def _drop(self, peer: bytes) -> None:
        self._waiting.pop(peer, None)
        self._nbytes.pop(peer, None)


TICK = 0.1
"""Seconds after which the clock is looked at when nothing arrives."""

READING = 2 * TICK
"""Seconds between two looks at the socket, at most; a longer time is one in which this process stood still."""

FULL = 0.002
"""Seconds after which it is tried again to send what a full connection did not take."""

HANDSHAKE = 5000
"""Milliseconds in which a connection must have said what it is, and in which a key must have been shown."""

BATCH = 64
"""Messages that are taken before answers are sent."""

QUIET = 300.0
"""Seconds without any worker after which none is expected any more."""

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Numbers of two parameters of ``mallopt``."""

KEPT = 64 * 2**20
"""Bytes that a heap may keep free at its end."""

LARGE = 32 * 2**20
"""Bytes from which on memory comes from the system each time; glibc allows no more."""


class Server:
    """A server that answers workers until it is told to stop.

    Args:
        core: state of the server.
        endpoint: "tcp://ADDRESS:PORT"; port 0 takes a free one.
        keys: folder made by ``gradwire keygen``: traffic is encrypted and only workers with a key of it may speak.
        insecure: allow an address that others can reach without keys.
        system: machine that the server runs on.

    Raises:
        ConfigError: an address that others can reach, without keys.
    """

    def __init__(
        self,
        core: ServerCore,
        endpoint: str = "tcp://127.0.0.1:0",
        *,
        keys: str | Path | None = None,
        insecure: bool = False,
        system: System = SYSTEM,
    ) -> None:
        self.core, self.clock = core, Readings(system.clock, READING)
        self._context, self._poller = system.context(), system.poller()
        self._authenticator: ThreadAuthenticator | None = None
        self._socket = self._context.socket(zmq.ROUTER)
        self._outbox = Outbox(self._socket, lambda: core.values.nbytes)
        self._guard = Guard(self._socket, core.rules.workers)
        # A peer that is gone is an error here and not a silent loss; a worker that comes again takes its name over.
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.ROUTER_HANDOVER, 1),
            (zmq.LINGER, 0),
            (zmq.SNDHWM, QUEUED),
            (zmq.RCVHWM, QUEUED),
            (zmq.HANDSHAKE_IVL, HANDSHAKE),
            (zmq.MAXMSGSIZE, max(CHUNK, MAX_HEADER)),
        ):
            self._socket.setsockopt(option, value)
        folder = None if keys is None else Path(keys)
        try:
            self._ranks = {} if folder is None else ranks_of(folder / "workers")
            self._authenticator = listen(self._context, self._socket, endpoint, folder, insecure)
        except ConfigError:
            # The caller gets no server that could be closed, and the address must be free for the next try.
            self.close()
            raise
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def run(self, stopped: Callable[[], bool], after: Callable[[], None] = lambda: None) -> None:
        """Serve.

        Args:
            stopped: asked several times a second.
            after: called after each batch of messages, with nothing half done: the moment for a snapshot.
        """
        last = self.clock.read() - TICK
        for source in (self._socket, self._guard.monitor):
            self._poller.register(source, zmq.POLLIN)
        while not stopped():
            ready = dict(self._poller.poll(int(1000 * (FULL if self._outbox else TICK))))
            now = self.clock.read()
            # In batches, so that a busy socket does not keep answers back, nor the clock and the snapshot after it.
            drained = self._socket not in ready or not all(self._take() for _ in range(BATCH))
            if self._guard.monitor in ready:
                self._guard.admit(now)
            # Connections that were full may have room by now.
            self._outbox.flush()
            self._part()
            if now - last >= TICK:
                self._send(self.core.tick(now))
                # Only then all that has come was read, and a silent connection is really silent.
                if drained:
                    self._guard.look(now)
                last = now
            after()

    def close(self) -> None:
        """Close the socket, so that the address is free."""
        # Before the socket, whose events it reads.
        self._guard.close()
        self._socket.close()
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()

    def _take(self) -> bool:
        try:
            peer, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        name, parts = peer.bytes, [frame.buffer for frame in frames]
        replies = self.core.receive(name, parts, self.clock.now, self._owner(peer))
        if self.core.members.knows(name) and not self._guard.knows(name):
            self._guard.introduced(name, peer)
        self._guard.heard(name)
        self._send(replies)
        return True

    def _send(self, messages: list[Outgoing]) -> None:
        for peer, frames in messages:
            self._outbox.put(peer, frames)

    def _part(self) -> None:
        """Tell the core which workers are gone, and which do not read."""
        for peer in self._outbox.unreachable:
            self.core.members.unreachable(peer)
        for peer in self._outbox.overfull:
            self.core.members.close(peer)
        self._outbox.unreachable.clear()
        self._outbox.overfull.clear()

    def _owner(self, frame: zmq.Frame) -> int | None:
        """The rank whose key the sender of a message has."""
        return self._ranks.get(str(frame.get("User-Id"))) if self._ranks else None


class Finished:
    """A condition that is checked at intervals: every worker has left, or none has been there for ``quiet`` seconds.

    Args:
        core: state of the server.
        quiet: seconds > 0.
        clock: clock of the server.
    """

    def __init__(self, core: ServerCore, quiet: float = QUIET, clock: Callable[[], float] = SYSTEM.clock) -> None:
        self._core, self._quiet, self._clock, self._seen = core, quiet, clock, clock()

    def __call__(self) -> bool:
        """Return whether the condition holds now."""
        now = self._clock()
        if len(self._core.members):
            self._seen = now
        return len(self._core.members.left) == self._core.rules.workers or now - self._seen > self._quiet


def keep_memory() -> bool:
    """Ask the C library's allocator to keep freed memory; return whether it can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(mallopt(TRIM_THRESHOLD, KEPT)) and bool(mallopt(MMAP_THRESHOLD, LARGE))
