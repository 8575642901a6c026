"""Handshake with a server: the keys of a connection, and the reasons for a refusal.

What was refused is said in words that name the remedy.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
import zmq.auth
from zmq.utils.monitor import parse_monitor_message

from gradwire.errors import require

__all__ = ["Door", "lock_peer", "lock_worker"]

EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)

CLOSED = 2.0
"""Seconds in which every handshake with keys was cut short, after which no bad moment is to blame but a wrong key."""


@dataclass
class Door:
    """The connection of one socket to one endpoint, as ZeroMQ's monitor reports it.

    Args:
        socket: not connected yet.
        who: at the other end, such as "server 0 at tcp://127.0.0.1:7000".
        keys: the folder of the keys that the socket speaks with; None: without.

    Attributes:
        refusal: why there will be no connection, with the remedy; empty while there may be one.
        lost: when the connection ended, by ``time.monotonic()``; None while it is there, or before the first one.
        opened: whether there ever was one.
    """

    socket: zmq.Socket[Any]
    who: str
    keys: Path | None
    refusal: str = ""
    lost: float | None = None
    opened: bool = False

    def __post_init__(self) -> None:
        self.monitor = self.socket.get_monitor_socket(EVENTS)
        self._closed: float | None = None

    def events(self) -> list[bool]:
        """List the events since the last call: True for each handshake that succeeded, False for each end."""
        told = []
        while self.monitor.poll(0):
            message = parse_monitor_message(self.monitor.recv_multipart())
            event, value = message["event"], int(message["value"])
            now = time.monotonic()
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.opened, self.lost, self._closed, self.refusal = True, None, None, ""
            elif event == zmq.EVENT_DISCONNECTED:
                self.lost = self.lost or (now if self.opened else None)
            else:
                self._refused(event, value, now)
            told.append(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
        return told

    def away(self, now: float) -> float:
        """The seconds since the connection ended; 0 while it exists, or before the first one."""
        return 0.0 if self.lost is None else now - self.lost

    def close(self) -> None:
        """Stop monitoring; to be called before the socket is closed."""
        self.socket.disable_monitor()
        self.monitor.close(0)

    def _refused(self, event: int, value: int, now: float) -> None:
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.refusal = (
                f"{self.who} refused the key of this process, of {self.keys}, in the handshake (status {value}): the "
                "key's public half must be in the folder 'workers' of the server's --keys. Take the folders of one run "
                "of `gradwire keygen`, by GRADWIRE_KEYS here and --keys there"
            )
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self.refusal = self._unlike(value)
        elif self.keys is not None and not self.opened:
            # Also what a server that is just ending does: only one that never lets this process in has another key.
            self._closed = self._closed or now
            if now - self._closed > CLOSED:
                self.refusal = (
                    f"{self.who} ends every handshake: it has another key than the one that {self.keys}/server.key "
                    "says, or is no gradwire server. Take the folders of one run of `gradwire keygen`, by "
                    "GRADWIRE_KEYS here and --keys there"
                )

    def _unlike(self, value: int) -> str:
        if value != zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return f"{self.who} refused the handshake (ZeroMQ's error {value:#x}): is it a gradwire server?"
        if self.keys is None:
            return (
                f"{self.who} refused the handshake: it takes only who has a key, and this process has none. Set "
                "GRADWIRE_KEYS to the folder of `gradwire keygen`, or to this worker's folder in it"
            )
        return (
            f"{self.who} refused the handshake: it has no keys, and this process has those of {self.keys}. Start the "
            "server with --keys FOLDER/servers of the same `gradwire keygen`, or this process without GRADWIRE_KEYS"
        )


def lock_worker(socket: zmq.Socket[Any], folder: Path) -> None:
    """Give a worker's socket its key, so that it speaks only to servers that have theirs.

    Args:
        socket: not connected yet.
        folder: the worker's.

    Raises:
        ConfigError: it is no worker's folder.
    """
    secrets, public = sorted(folder.glob("*.key_secret")), folder / "server.key"
    found = len(secrets) == 1 and public.is_file()
    require(found, "keys", "a worker's folder made by gradwire keygen", str(folder))
    socket.curve_publickey, socket.curve_secretkey = zmq.auth.load_certificate(secrets[0])
    socket.curve_serverkey, _ = zmq.auth.load_certificate(public)


def lock_peer(socket: zmq.Socket[Any], folder: Path) -> None:
    """Let a worker's or a server's socket speak, with the key in its folder, to peers that have the servers' key."""
    if not (folder / "server.key_secret").is_file():
        lock_worker(socket, folder)
        return
    public, private = zmq.auth.load_certificate(folder / "server.key_secret")
    socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = public, private, public
