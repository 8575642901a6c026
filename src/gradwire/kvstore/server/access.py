"""Access to a server: its address, its keys, and the connections that it closes.

Some connections only take room: too many of them, without an introduction, or with a message that never ends.

Invariants:
    The guard looks at the number of bytes that the kernel has received on each connection, and ends those from which no
    whole message ever comes. A worker that is cut off by mistake connects again, and loses nothing.

Why:
    ZeroMQ hands a message over when all of it is there, and until then keeps the bytes that have come, however many
    they are.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import resource
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import parse_monitor_message

from gradwire.errors import ConfigError, require

__all__ = ["Guard", "check_exposure", "listen"]

UNFINISHED = 32 * 2**20
"""Bytes of a connection that may have come without a whole message among them."""

INTRODUCTION = 10.0
"""Seconds in which a connection has to introduce itself."""

RECEIVED = 128
"""The place of the bytes received, an unsigned 64-bit number, in Linux's ``struct tcp_info``."""


@dataclass
class Connection:
    """An accepted connection: its time, its peer, and the bytes received when no whole message was left to read."""

    since: float
    peer: bytes | None = None
    read: int = 0


class Guard:
    """A guard that watches the connections of a bound socket.

    Args:
        socket: a ROUTER, not bound yet.
        workers: number of connections that are to be expected.

    Attributes:
        monitor: readable when a connection was made or ended: call ``admit`` then.
    """

    def __init__(self, socket: zmq.Socket[Any], workers: int) -> None:
        self.monitor = socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = max(workers + 1, min(2 * workers + 64, files - 64))
        self._connections: dict[int, Connection] = {}
        self._heard: set[bytes] = set()
        self._peers: set[bytes] = set()

    def knows(self, peer: bytes) -> bool:
        """Return whether the connection of a worker that introduced itself is known."""
        return peer in self._peers

    def introduced(self, peer: bytes, frame: zmq.Frame) -> None:
        """Note that the sender of a message with this frame has introduced itself."""
        self.admit(0.0)
        self._peers.add(peer)
        # The connection may have ended between the message and this look.
        with contextlib.suppress(zmq.ZMQError, KeyError):
            self._connections[int(str(frame.get("__fd")))].peer = peer

    def heard(self, peer: bytes) -> None:
        """Note that a whole message came."""
        self._heard.add(peer)

    def admit(self, now: float) -> None:
        """Note connections that were made or ended; one too many is closed at once."""
        while self.monitor.poll(0):
            told = parse_monitor_message(self.monitor.recv_multipart())
            fd = int(told["value"])
            if told["event"] == zmq.EVENT_DISCONNECTED:
                gone = self._connections.pop(fd, None)
                self._peers.discard(gone.peer if gone is not None and gone.peer is not None else b"")
            elif len(self._connections) < self.most:
                self._connections[fd] = Connection(now)
            else:
                end(fd)

    def look(self, now: float) -> None:
        """Check all connections, when every whole message has been read."""
        self.admit(now)
        for fd, each in list(self._connections.items()):
            # ``introduced`` notes connections without the time.
            each.since = each.since or now
            received = bytes_received(fd)
            # Whole messages came, so all bytes until now count as read.
            if each.peer in self._heard:
                each.read = received
            if received - each.read > UNFINISHED or (each.peer is None and now - each.since > INTRODUCTION):
                end(fd)
        self._heard.clear()

    def close(self) -> None:
        """Stop watching; to be called before the socket is closed."""
        self.monitor.close(0)


def bytes_received(fd: int) -> int:
    """The bytes received on a TCP connection so far; 0 if the system does not tell, or there is no connection."""
    with contextlib.suppress(OSError, struct.error, AttributeError), borrowed(fd) as connection:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        (count,) = struct.unpack_from("<Q", told, RECEIVED)
        return int(count)
    return 0


def end(fd: int) -> None:
    """Shut a connection down so that ZeroMQ sees its end and closes it."""
    with contextlib.suppress(OSError), borrowed(fd) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def borrowed(fd: int) -> socket.socket:
    """Duplicate the descriptor of a connection of ZeroMQ's."""
    # A copy, because closing ours must not close that of ZeroMQ.
    return socket.socket(fileno=os.dup(fd))


def ranks_of(folder: Path) -> dict[str, int]:
    """Map public keys of workers, by which ZeroMQ names them, to the ranks in the names of their files."""
    found = dict[str, int]()
    for file in folder.glob("worker-*.key"):
        rank = file.stem.removeprefix("worker-")
        if rank.isdecimal():
            try:
                found[zmq.auth.load_certificate(file)[0].decode()] = int(rank)
            except (OSError, ValueError) as error:
                raise ConfigError(f"{file} cannot be used: {error}; make keys anew by gradwire keygen") from error
    return found


def check_exposure(endpoint: str, locked: bool, insecure: bool) -> None:
    """Refuse to listen where strangers could connect.

    >>> check_exposure("tcp://127.0.0.1:5000", locked=False, insecure=False)

    Raises:
        ConfigError: no address of the form "tcp://ADDRESS:PORT", or one that others can reach, without keys.
    """
    parts = urlsplit(endpoint)
    if parts.scheme == "ipc":
        return
    require(parts.scheme == "tcp" and bool(parts.hostname), "endpoint", "of the form tcp://ADDRESS:PORT", endpoint)
    host = str(parts.hostname)
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not (loopback or locked or insecure):
        raise ConfigError(
            f"endpoint {endpoint!r} can be reached by others: give keys (`gradwire keygen`, then GRADWIRE_KEYS or "
            "--keys); or, where everybody who can reach it may read and change the model, say GRADWIRE_INSECURE=1 "
            "(under a launcher), --insecure (of gradwire server) or insecure=True (in Python)"
        )


def listen(
    context: zmq.Context[Any], socket: zmq.Socket[Any], endpoint: str, keys: Path | None, insecure: bool
) -> ThreadAuthenticator | None:
    """Bind a socket, if strangers cannot reach it.

    Args:
        context: context of the socket.
        socket: not bound yet.
        endpoint: "tcp://ADDRESS:PORT".
        keys: the servers' folder of ``gradwire keygen``: only peers whose key is in it may connect; None: anybody may.
        insecure: allow an address that others can reach without keys.

    Returns:
        The authenticator, which must be stopped at the end; None without keys.

    Raises:
        ConfigError: the address cannot be bound, or others can reach it without keys; or the folder is another one, or
            damaged.
    """
    check_exposure(endpoint, keys is not None, insecure)
    authenticator = None if keys is None else lock_server(context, socket, keys)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        if authenticator is not None:
            authenticator.stop()
        raise ConfigError(f"endpoint {endpoint!r} cannot be bound: {error}") from error
    return authenticator


def lock_server(context: zmq.Context[Any], socket: zmq.Socket[Any], folder: Path) -> ThreadAuthenticator:
    """Let only peers connect to a socket whose key is in the servers' folder."""
    secret = folder / "server.key_secret"
    require(secret.is_file(), "keys", "a folder made by gradwire keygen", str(folder))
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    try:
        authenticator.configure_curve(domain="*", location=str(folder / "workers"))
        socket.curve_publickey, socket.curve_secretkey = zmq.auth.load_certificate(secret)
        socket.curve_server = True
    except (OSError, ValueError, zmq.ZMQError) as error:
        authenticator.stop()
        raise ConfigError(f"keys cannot be used: {error}; make them anew by gradwire keygen") from error
    return authenticator
