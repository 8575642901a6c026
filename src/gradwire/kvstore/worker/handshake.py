"""Handshake with a server: the keys of a connection, and the reasons for a refusal, each with its remedy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
import zmq.auth
from zmq.utils.monitor import parse_monitor_message

from gradwire._system import Readings
from gradwire.errors import require
from gradwire.kvstore.system import SYSTEM

__all__ = ["ConnectionMonitor", "lock_peer", "lock_worker"]

EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)

HANDSHAKE_TIMEOUT = 2.0
"""Seconds of failed handshakes after which the reason is a wrong key, and not a server that is about to end."""


@dataclass
class ConnectionMonitor:
    """A monitor of the connection between one socket and one endpoint.

    Args:
        peer: socket that is to be connected.
        title: name of the other end for messages, such as "server 0 at tcp://127.0.0.1:7000".
        keys: folder with the keys of the socket; None: the connection is not encrypted.
        clock: clock of the thread that has the socket.

    Attributes:
        socket: socket from which ZeroMQ's events are read.
        refusal: reason why there will be no connection, with the remedy; empty while there may be one.
        lost: time of the disconnection, by the clock; None while connected, or before the first connection.
        opened: true if there ever was a connection.
    """

    peer: zmq.Socket[Any]
    title: str
    keys: Path | None
    clock: Readings = field(default_factory=lambda: Readings(SYSTEM.clock, HANDSHAKE_TIMEOUT))
    refusal: str = ""
    lost: float | None = None
    opened: bool = False

    def __post_init__(self) -> None:
        self.socket = self.peer.get_monitor_socket(EVENTS)
        self._closed: float | None = None

    def events(self) -> list[bool]:
        """List the events since the last call: True for each handshake that succeeded, False for each end."""
        succeeded = []
        while self.socket.poll(0):
            message = parse_monitor_message(self.socket.recv_multipart())
            event, value = message["event"], int(message["value"])
            now = self.clock.read()
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.opened, self.lost, self._closed, self.refusal = True, None, None, ""
            elif event == zmq.EVENT_DISCONNECTED:
                self.lost = self.lost or (now if self.opened else None)
            else:
                self._refused(event, value, now)
            succeeded.append(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
        return succeeded

    def disconnected_for(self, now: float) -> float:
        """Return the seconds since the connection ended; 0 while it exists, or before the first one."""
        return 0.0 if self.lost is None else now - self.lost

    def close(self) -> None:
        """Stop monitoring; to be called before the socket is closed."""
        # Before our end is closed, because ZeroMQ's thread still writes to it.
        self.peer.disable_monitor()
        self.socket.close(0)

    def _refused(self, event: int, value: int, now: float) -> None:
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.refusal = (
                f"{self.title} refused the key of this process, of {self.keys}, in the handshake (status {value}): the "
                "key's public half must be in the folder 'workers' of the server's --keys. Take the folders of one run "
                "of `gradwire keygen`, by GRADWIRE_KEYS here and --keys there"
            )
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self.refusal = self._mechanism_error(value)
        elif self.keys is not None and not self.opened:
            # A server that is about to end closes connections, too. A wrong key is the reason if none ever succeeded.
            self._closed = self._closed or now
            if now - self._closed > HANDSHAKE_TIMEOUT:
                self.refusal = (
                    f"{self.title} ends every handshake: it has another key than the one that {self.keys}/server.key "
                    "says, or is no gradwire server. Take the folders of one run of `gradwire keygen`, by "
                    "GRADWIRE_KEYS here and --keys there"
                )

    def _mechanism_error(self, value: int) -> str:
        if value != zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return f"{self.title} refused the handshake (ZeroMQ's error {value:#x}): is it a gradwire server?"
        if self.keys is None:
            return (
                f"{self.title} refused the handshake: it takes only who has a key, and this process has none. Set "
                "GRADWIRE_KEYS to the folder of `gradwire keygen`, or to this worker's folder in it"
            )
        return (
            f"{self.title} refused the handshake: it has no keys, and this process has those of {self.keys}. Start the "
            "server with --keys FOLDER/servers of the same `gradwire keygen`, or this process without GRADWIRE_KEYS"
        )


def lock_worker(socket: zmq.Socket[Any], folder: Path) -> None:
    """Set the keys of a worker's socket, so that it connects only to servers that have the servers' key.

    Args:
        socket: socket that is not connected yet.
        folder: the worker's folder with keys.

    Raises:
        ConfigError: the folder is no worker's folder.
    """
    secrets, public = sorted(folder.glob("*.key_secret")), folder / "server.key"
    found = len(secrets) == 1 and public.is_file()
    require(found, "keys", "a worker's folder made by gradwire keygen", str(folder))
    socket.curve_publickey, socket.curve_secretkey = zmq.auth.load_certificate(secrets[0])
    socket.curve_serverkey, _ = zmq.auth.load_certificate(public)


def lock_peer(socket: zmq.Socket[Any], folder: Path) -> None:
    """Set the keys of a worker's or a server's socket, so that it connects only to peers that have the servers' key."""
    if not (folder / "server.key_secret").is_file():
        lock_worker(socket, folder)
        return
    public, private = zmq.auth.load_certificate(folder / "server.key_secret")
    socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = public, private, public
