"""The scheduler's socket, and those of who speaks to it."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq

from gradwire.errors import ConfigError, GroupError, WireError
from gradwire.kvstore.launch.rendezvous import ANSWERS, Rendezvous
from gradwire.kvstore.protocol.messages import MAX_HEADER, VERSION, Outgoing, pack, unpack
from gradwire.kvstore.server.access import check_exposure, lock_server
from gradwire.kvstore.worker.handshake import Door, lock_peer

__all__ = ["Member", "join", "schedule"]

PING = 2.0
"""Seconds between two signs of life of a server."""


def schedule(
    endpoint: str, workers: int, servers: int, *, timeout: float, keys: Path | None = None, insecure: bool = False
) -> None:
    """Be the scheduler until the servers are gone.

    Args:
        endpoint: "tcp://ADDRESS:PORT".
        workers: that are to come.
        servers: that are to come.
        timeout: seconds in which they must.
        keys: the servers' folder of ``gradwire keygen``.
        insecure: allow an address that others can reach without keys.

    Raises:
        ConfigError: an address that cannot be bound, or that others can reach, without keys.
        GroupError: somebody did not come.
    """
    check_exposure(endpoint, keys is not None, insecure)
    context = zmq.Context()
    socket, authenticator = context.socket(zmq.ROUTER), None
    try:
        for option, value in ((zmq.LINGER, 1000), (zmq.MAXMSGSIZE, MAX_HEADER), (zmq.ROUTER_HANDOVER, 1)):
            socket.setsockopt(option, value)
        if keys is not None:
            authenticator = lock_server(context, socket, keys)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(f"endpoint {endpoint!r} cannot be bound: {error}") from error
        _attend(socket, Rendezvous(workers, servers), time.monotonic() + timeout, timeout)
    finally:
        socket.close()
        if authenticator is not None:
            authenticator.stop()
        context.term()


def _attend(socket: zmq.Socket[Any], core: Rendezvous, deadline: float, timeout: float) -> None:
    while not core.over(time.monotonic()):
        if socket.poll(250):
            peer, *frames = socket.recv_multipart()
            _send(socket, core.receive(peer, frames, time.monotonic()))
        if not core.complete and time.monotonic() > deadline:
            text = f"after {timeout:g} s {core.missing()}"
            _send(socket, core.give_up(text))
            raise GroupError(text)


def _send(socket: zmq.Socket[Any], messages: list[Outgoing]) -> None:
    for peer, frames in messages:
        socket.send_multipart([peer, *frames])


class Member:
    """A process that has joined, or is about to.

    Args:
        scheduler: its endpoint.
        endpoint: at which this process listens, if it is a server.
        rank: of a worker; -1: any.
        keys: this process's folder.
        timeout: seconds in which the group must be complete.
    """

    def __init__(
        self, scheduler: str, *, endpoint: str = "", rank: int = -1, keys: Path | None = None, timeout: float
    ) -> None:
        self.scheduler, self.timeout = scheduler, timeout
        self.group: dict[str, Any] | None = None
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, os.urandom(16).hex().encode())
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._deadline, self._pinged = time.monotonic() + timeout, time.monotonic()
        self._door = Door(self._socket, f"the scheduler at {scheduler}", keys)
        try:
            if keys is not None:
                lock_peer(self._socket, keys)
            self._socket.connect(scheduler)
        except (zmq.ZMQError, ConfigError) as error:
            self._close()
            raise ConfigError(f"the scheduler at {scheduler} cannot be reached: {error}") from error
        self._socket.send(pack("join", version=VERSION, rank=rank, endpoint=endpoint))

    def attend(self, wait: float = 0.0) -> None:
        """Take what has come, and give a sign of life.

        Args:
            wait: seconds to wait for something.

        Raises:
            GroupError: there will be no group, or there was none in time.
            ConfigError: the scheduler refused the connection, or has none of the keys.
        """
        if self._socket.poll(int(1000 * wait)):
            self._take(self._socket.recv_multipart())
        now = time.monotonic()
        self._door.events()
        if self._door.refusal:
            raise ConfigError(self._door.refusal)
        if self.group is None and now > self._deadline:
            reason = "" if self._door.opened else ": it never answered. Is it started, and is that its address?"
            raise GroupError(f"the scheduler at {self.scheduler} gave no group within {self.timeout:g} s{reason}")
        if now - self._pinged > PING:
            self._pinged = now
            # Where it has ended nobody needs to know that this server lives.
            with suppress(zmq.Again):
                self._socket.send(pack("ping"), zmq.NOBLOCK)

    def leave(self) -> None:
        """Say so, and let the connection go."""
        with suppress(zmq.Again):
            self._socket.send(pack("leave"), zmq.NOBLOCK)
        self._close()

    def _take(self, frames: list[bytes]) -> None:
        try:
            op, fields, _ = unpack(frames, ANSWERS)
        except WireError as error:
            raise GroupError(f"what answers at {self.scheduler} is no scheduler: {error}") from error
        if op == "error":
            raise GroupError(f"scheduler at {self.scheduler}: {fields['text']}")
        self.group = fields

    def _close(self) -> None:
        self._door.close()
        self._socket.close()
        self._context.term()


def join(scheduler: str, rank: int, keys: Path | None, timeout: float) -> tuple[int, tuple[str, ...]]:
    """Join as a worker; the rank, and the servers' endpoints.

    Raises:
        GroupError: there was no group in time.
    """
    member = Member(scheduler, rank=rank, keys=keys, timeout=timeout)
    try:
        while member.group is None:
            member.attend(0.25)
        return int(member.group["rank"]), tuple(str(each) for each in member.group["servers"])
    finally:
        member.leave()
