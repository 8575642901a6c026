"""What a server sends: at once where the connection takes it, later where it is full, never to who does not read.

Law: what waits for one worker is bounded, whatever it asks for; nobody else waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

__all__ = ["QUEUED", "Outbox"]

QUEUED = 64
"""Messages that a connection may hold in either direction, besides what lies in the kernel."""

ROOM = 64 * 2**20
"""Bytes that may wait for one worker besides twice all values: it asks for a value once at a time."""

OVERHEAD = 512
"""Bytes that a waiting message takes besides its frames."""


class Outbox:
    """Messages on their way out of a ROUTER socket with ``ROUTER_MANDATORY``.

    Args:
        socket: of the server.
        stored: bytes of all values, now.
    """

    def __init__(self, socket: zmq.Socket[Any], stored: Callable[[], int]) -> None:
        self._socket, self._stored = socket, stored
        self._waiting: dict[bytes, deque[list[Any]]] = {}
        self._nbytes: dict[bytes, int] = {}
        self.unreachable: set[bytes] = set()
        self.deaf: set[bytes] = set()
        """Whom a message could not be sent to, and who has more waiting than it can have asked for; the caller empties
        both."""

    def __bool__(self) -> bool:
        """Whether something waits."""
        return bool(self._waiting)

    def put(self, peer: bytes, frames: list[Any]) -> None:
        """Send, after what already waits for the same worker."""
        if peer not in self._waiting and self._sent(peer, frames):
            return
        nbytes = OVERHEAD + sum(map(len, frames))
        self._nbytes[peer] = self._nbytes.get(peer, 0) + nbytes
        if self._nbytes[peer] > ROOM + 2 * self._stored():
            self._drop(peer)
            self.deaf.add(peer)
            return
        self._waiting.setdefault(peer, deque()).append(frames)

    def flush(self) -> None:
        """Send what can be sent now."""
        for peer, frames in list(self._waiting.items()):
            while frames and self._sent(peer, frames[0]):
                self._nbytes[peer] -= OVERHEAD + sum(map(len, frames.popleft()))
            if not frames or peer in self.unreachable:
                self._drop(peer)

    def _sent(self, peer: bytes, frames: list[Any]) -> bool:
        """Whether that is done with: sent, or never to be."""
        try:
            self._socket.send_multipart([peer, *frames], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            # Whom it cannot reach comes again and asks again.
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self.unreachable.add(peer)
        return True

    def _drop(self, peer: bytes) -> None:
        self._waiting.pop(peer, None)
        self._nbytes.pop(peer, None)
