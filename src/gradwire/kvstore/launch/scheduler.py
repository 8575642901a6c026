"""Scheduler as in MXNet: the processes of a run meet there when each knows only one address.

    worker                       scheduler                          server
    join (a rank, or any)    ->                       <-  join, with the endpoint it listens at
                             <-  group: your rank, and all servers, when everybody is here  ->
                          <-  join again, now and then, until the group has come; then a server's ping
                                                      <-  leave, at the end

Invariants:
    * It keeps nothing but which processes have joined. ``Rendezvous`` is that without sockets.
    * Until the group is complete, a process that leaves or is silent for 15 s loses its place, and one that asks for
      the rank of a worker that is silent for 4 s takes its place over: it may be the same one, started again.
    * A process that waits joins again and again, so a scheduler that is started again learns who is there, and one that
      was stopped for long gets a place if one is free.
    * A complete group needs it no more, except for a worker that comes again. It ends with the servers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import zmq

from gradwire._system import Readings
from gradwire.errors import ConfigError, GroupError, WireError, is_int
from gradwire.kvstore.protocol.messages import MAX_HEADER, VERSION, Outgoing, pack, unpack
from gradwire.kvstore.server.access import listen
from gradwire.kvstore.worker.handshake import ConnectionMonitor, lock_peer

__all__ = ["Member", "join", "schedule"]

PING = 2.0
"""Seconds between two signs of life of a process."""

SILENCE = 15.0
"""Seconds after which a process that says nothing is gone."""

READING = 0.5
"""Seconds between two looks at the socket, at most; a longer time is one in which the scheduler stood still."""


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 1024


CALLS: Mapping[str, Mapping[str, Any]] = {
    "join": {
        "version": lambda value: is_int(value, 0),
        "rank": lambda value: is_int(value, -1, 2**20),
        "endpoint": _text,
    },
    "ping": {},
    "leave": {},
}
"""Messages that the scheduler receives. A worker's "endpoint" is empty; rank -1 is any."""

ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "group": {"rank": lambda value: is_int(value, -1), "servers": lambda value: isinstance(value, list)},
    "error": {"text": _text},
}
"""Messages that the scheduler sends."""


class Rendezvous:
    """The state of a rendezvous of so many workers and servers: who has joined; it has no sockets."""

    def __init__(self, workers: int, servers: int) -> None:
        self.workers, self.count = workers, servers
        self.servers: dict[str, bytes] = {}
        self._heard: dict[bytes, float] = {}
        self._wanted: dict[bytes, int] = {}
        self.complete = False

    def receive(self, peer: bytes, frames: Sequence[bytes | memoryview], now: float) -> list[Outgoing]:
        """Take one message, and return the messages to send because of it."""
        if peer in self._heard:
            self._heard[peer] = now
        try:
            op, fields, _ = unpack(frames, CALLS)
            if op == "join":
                return self._join(peer, now, **fields)
        except (ConfigError, WireError) as error:
            # One member that asks for what cannot be must not end the scheduler for the others.
            return [(peer, [pack("error", text=str(error)[:500])])]
        if op == "leave":
            self._remove(peer)
        return []

    def over(self, now: float) -> bool:
        """Remove the processes that are silent; return whether the group was complete and its servers are gone."""
        # A process that was killed does not say that it leaves.
        for peer in [peer for peer, heard in self._heard.items() if now - heard >= SILENCE]:
            self._remove(peer)
        return self.complete and not self._heard

    def _remove(self, peer: bytes) -> None:
        self._heard.pop(peer, None)
        if not self.complete:
            # It may have failed, and is started again: its place is free for that.
            self._wanted.pop(peer, None)
            self.servers = {endpoint: each for endpoint, each in self.servers.items() if each != peer}

    def missing(self) -> str:
        """Say in words which processes are missing."""
        here = f"{len(self._wanted)} of {self.workers} workers and {len(self.servers)} of {self.count} servers have"
        return f"{here} joined"

    def give_up(self, text: str) -> list[Outgoing]:
        """Tell every process why there will be no group."""
        return [(peer, [pack("error", text=text)]) for peer in (*self._wanted, *self.servers.values())]

    def _join(self, peer: bytes, now: float, version: int, rank: int, endpoint: str) -> list[Outgoing]:
        if version != VERSION:
            raise WireError(f"this scheduler speaks version {VERSION} of the protocol, not {version}")
        replaced: list[Outgoing] = []
        if endpoint:
            self._take_server(peer, endpoint, now)
        else:
            replaced = self._take_worker(peer, rank, now)
        if self.complete:
            return [self._group_message(peer, self._wanted.get(peer, rank))]
        if len(self._wanted) < self.workers or len(self.servers) < self.count:
            return replaced
        self.complete = True
        # Workers need the scheduler no more, and it ends with the servers.
        self._heard = {each: self._heard[each] for each in self.servers.values()}
        free = iter(sorted(set(range(self.workers)) - set(self._wanted.values())))
        self._wanted = {each: wanted if wanted >= 0 else next(free) for each, wanted in self._wanted.items()}
        # Nobody was replaced by the last one to come, for there were as many workers before.
        return [
            self._group_message(each, self._wanted.get(each, -1)) for each in (*self._wanted, *self.servers.values())
        ]

    def _take_server(self, peer: bytes, endpoint: str, now: float) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme != "tcp" or not parts.hostname:
            raise WireError(f"a server's endpoint is tcp://ADDRESS:PORT, got {endpoint!r}")
        if endpoint not in self.servers and len(self.servers) == self.count:
            raise ConfigError(f"all {self.count} servers have joined already")
        self.servers[endpoint] = peer
        self._heard[peer] = now

    def _take_worker(self, peer: bytes, rank: int, now: float) -> list[Outgoing]:
        """Note a worker; return the message to an earlier process that had asked for its rank."""
        if peer in self._wanted:
            return []
        if rank >= self.workers:
            raise ConfigError(f"a rank must be in [0, {self.workers}), got {rank}")
        if self.complete:
            if rank < 0:
                raise ConfigError(
                    f"all {self.workers} workers have joined: one that is started again must name its rank (DMLC_RANK)"
                )
            return []
        replaced = [each for each, wanted in self._wanted.items() if rank == wanted >= 0]
        for each in replaced:
            # It may have been killed, and its place would be free only after a long silence. One that lives keeps it:
            # two processes with one rank would end each other in turns.
            if (silent := now - self._heard[each]) <= 2 * PING:
                raise ConfigError(f"rank {rank} is taken by a process that was heard of {silent:.1f} s ago")
            self._remove(each)
        if len(self._wanted) == self.workers:
            raise ConfigError(f"all {self.workers} workers have joined")
        self._wanted[peer], self._heard[peer] = rank, now
        return [(each, [pack("error", text=f"another process has joined as rank {rank}")]) for each in replaced]

    def _group_message(self, peer: bytes, rank: int) -> Outgoing:
        return peer, [pack("group", rank=rank, servers=list(self.servers))]


def schedule(
    endpoint: str, workers: int, servers: int, *, timeout: float, keys: Path | None = None, insecure: bool = False
) -> None:
    """Run the scheduler of so many workers and servers until the servers are gone.

    Args:
        endpoint: "tcp://ADDRESS:PORT".
        timeout: seconds in which all must come.
        keys: the servers' folder of ``gradwire keygen``.
        insecure: allow an address that others can reach without keys.

    Raises:
        ConfigError: an address that cannot be bound, or that others can reach, without keys.
        GroupError: a worker or server did not come.
    """
    context = zmq.Context()
    socket, authenticator = context.socket(zmq.ROUTER), None
    try:
        # The last messages, such as the reason of an end, may take some time to leave.
        for option, value in ((zmq.LINGER, 1000), (zmq.MAXMSGSIZE, MAX_HEADER), (zmq.ROUTER_HANDOVER, 1)):
            socket.setsockopt(option, value)
        authenticator = listen(context, socket, endpoint, keys, insecure)
        _attend(socket, Rendezvous(workers, servers), time.monotonic() + timeout, timeout)
    finally:
        socket.close()
        if authenticator is not None:
            authenticator.stop()
        # Last, because it waits until all sockets are closed, the authenticator's among them.
        context.term()


def _attend(socket: zmq.Socket[Any], core: Rendezvous, deadline: float, timeout: float) -> None:
    clock = Readings(time.monotonic, READING)
    while not core.over(clock.read()):
        # A short wait, so that the deadline is looked at although nothing arrives.
        if socket.poll(250):
            peer, *frames = socket.recv_multipart()
            _send(socket, core.receive(peer, frames, clock.now))
        if not core.complete and time.monotonic() > deadline:
            text = f"after {timeout:g} s {core.missing()}"
            # The others learn the reason here, and need not wait for deadlines of their own.
            _send(socket, core.give_up(text))
            raise GroupError(text)


def _send(socket: zmq.Socket[Any], messages: list[Outgoing]) -> None:
    for peer, frames in messages:
        socket.send_multipart([peer, *frames])


class Member:
    """A process that has joined, or is about to join.

    Args:
        scheduler: endpoint of the scheduler.
        endpoint: endpoint at which this process listens, if it is a server.
        rank: rank of a worker; -1: any.
        keys: key folder of this process.
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
        self._monitor = ConnectionMonitor(self._socket, f"the scheduler at {scheduler}", keys)
        try:
            if keys is not None:
                lock_peer(self._socket, keys)
            self._socket.connect(scheduler)
        except (zmq.ZMQError, ConfigError) as error:
            # A context that is never ended would keep its threads.
            self._close()
            raise ConfigError(f"the scheduler at {scheduler} cannot be reached: {error}") from error
        self._join = pack("join", version=VERSION, rank=rank, endpoint=endpoint)
        self._socket.send(self._join)

    def attend(self, wait: float = 0.0) -> None:
        """Read the messages that have come, and send a heartbeat.

        Args:
            wait: seconds to wait for something.

        Raises:
            GroupError: there will be no group, or there was none in time.
            ConfigError: the scheduler refused the connection, or has none of the keys.
        """
        if self._socket.poll(int(1000 * wait)):
            self._take(self._socket.recv_multipart())
        now = time.monotonic()
        self._monitor.events()
        if self._monitor.refusal:
            raise ConfigError(self._monitor.refusal)
        if self.group is None and now > self._deadline:
            reason = "" if self._monitor.opened else ": it never answered. Is it started, and is that its address?"
            raise GroupError(f"the scheduler at {self.scheduler} gave no group within {self.timeout:g} s{reason}")
        if now - self._pinged > PING:
            self._pinged = now
            # If the scheduler has ended nobody needs to know that this server lives.
            with suppress(zmq.Again):
                self._socket.send(self._join if self.group is None else pack("ping"), zmq.NOBLOCK)

    def leave(self) -> None:
        """Announce the departure, and close the connection."""
        with suppress(zmq.Again):
            # Without a wait: the scheduler may have ended before.
            self._socket.send(pack("leave"), zmq.NOBLOCK)
        self._close()

    def _take(self, frames: list[bytes]) -> None:
        try:
            op, fields, _ = unpack(frames, ANSWERS)
        except WireError as error:
            # Any program may listen at an address that a user mistyped.
            raise GroupError(f"what answers at {self.scheduler} is no scheduler: {error}") from error
        if op == "error":
            raise GroupError(f"scheduler at {self.scheduler}: {fields['text']}")
        self.group = fields

    def _close(self) -> None:
        self._monitor.close()
        self._socket.close()
        self._context.term()


def join(scheduler: str, rank: int, keys: Path | None, timeout: float) -> tuple[int, tuple[str, ...]]:
    """Join as a worker; return the rank and the servers' endpoints.

    Raises:
        GroupError: there was no group in time.
    """
    member = Member(scheduler, rank=rank, keys=keys, timeout=timeout)
    try:
        while member.group is None:
            member.attend(0.25)
        return int(member.group["rank"]), tuple(str(each) for each in member.group["servers"])
    finally:
        # A worker needs the scheduler for its rank and the servers' addresses only.
        member.leave()
