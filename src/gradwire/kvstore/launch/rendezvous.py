"""Where the processes of a run meet when each knows nothing but one address: MXNet's scheduler.

    worker                       scheduler                          server
    join (a rank, or any)    ->                       <-  join, with the endpoint it listens at
                             <-  group: your rank, and all servers, when everybody is here  ->
                                                      <-  ping, now and then; leave, at the end

Law: it keeps nothing but who is here. When the group is complete it is needed no more, except by a worker that comes
again; it ends with the servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from gradwire.errors import ConfigError, WireError, is_int
from gradwire.kvstore.protocol.messages import VERSION, Outgoing, pack, unpack

__all__ = ["ANSWERS", "Rendezvous"]

SILENCE = 15.0
"""Seconds after which a server that says nothing is gone."""


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 1024


CALLS: Mapping[str, Mapping[str, Any]] = {
    "join": {"version": lambda value: is_int(value, 0), "rank": lambda value: is_int(value, -1, 2**20),
             "endpoint": _text},
    "ping": {},
    "leave": {},
}  # fmt: skip
"""What it is sent. A worker's "endpoint" is empty; rank -1 is any."""

ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "group": {"rank": lambda value: is_int(value, -1), "servers": lambda value: isinstance(value, list)},
    "error": {"text": _text},
}
"""What it sends."""


class Rendezvous:
    """Who is here; no sockets.

    Args:
        workers: that are to come.
        servers: that are to come.
    """

    def __init__(self, workers: int, servers: int) -> None:
        self.workers, self.count = workers, servers
        self.servers: dict[str, bytes] = {}
        self._heard: dict[bytes, float] = {}
        self._wanted: dict[bytes, int] = {}
        self.complete = False

    def receive(self, peer: bytes, frames: Sequence[bytes | memoryview], now: float) -> list[Outgoing]:
        """Take one message; what is to be sent because of it."""
        try:
            op, fields, _ = unpack(frames, CALLS)
            if op == "join":
                return self._join(peer, now, **fields)
        except (ConfigError, WireError) as error:
            return [(peer, [pack("error", text=str(error)[:500])])]
        if op == "leave":
            self._heard.pop(peer, None)
        elif peer in self._heard:
            self._heard[peer] = now
        return []

    def over(self, now: float) -> bool:
        """Whether the group was complete, and its servers are gone."""
        self._heard = {peer: heard for peer, heard in self._heard.items() if now - heard < SILENCE}
        return self.complete and not self._heard

    def missing(self) -> str:
        """Who is not here, in words."""
        here = f"{len(self._wanted)} of {self.workers} workers and {len(self.servers)} of {self.count} servers have"
        return f"{here} joined"

    def give_up(self, text: str) -> list[Outgoing]:
        """Tell everybody why there will be no group."""
        return [(peer, [pack("error", text=text)]) for peer in (*self._wanted, *self.servers.values())]

    def _join(self, peer: bytes, now: float, version: int, rank: int, endpoint: str) -> list[Outgoing]:
        if version != VERSION:
            raise WireError(f"this scheduler speaks version {VERSION} of the protocol, not {version}")
        if endpoint:
            self._take_server(peer, endpoint, now)
        else:
            self._take_worker(peer, rank)
        if self.complete:
            return [self._told(peer, self._wanted.get(peer, rank))]
        if len(self._wanted) < self.workers or len(self.servers) < self.count:
            return []
        self.complete = True
        free = iter(sorted(set(range(self.workers)) - set(self._wanted.values())))
        self._wanted = {each: wanted if wanted >= 0 else next(free) for each, wanted in self._wanted.items()}
        return [self._told(each, self._wanted.get(each, -1)) for each in (*self._wanted, *self.servers.values())]

    def _take_server(self, peer: bytes, endpoint: str, now: float) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme != "tcp" or not parts.hostname:
            raise WireError(f"a server's endpoint is tcp://ADDRESS:PORT, got {endpoint!r}")
        if endpoint not in self.servers and len(self.servers) == self.count:
            raise ConfigError(f"all {self.count} servers have joined already")
        self.servers[endpoint] = peer
        self._heard[peer] = now

    def _take_worker(self, peer: bytes, rank: int) -> None:
        if peer in self._wanted:
            return
        if rank >= self.workers:
            raise ConfigError(f"a rank must be in [0, {self.workers}), got {rank}")
        if self.complete:
            if rank < 0:
                raise ConfigError(
                    f"all {self.workers} workers have joined: one that is started again must name its rank (DMLC_RANK)"
                )
            return
        if len(self._wanted) == self.workers or (rank >= 0 and rank in self._wanted.values()):
            raise ConfigError(f"rank {rank} is taken" if rank >= 0 else f"all {self.workers} workers have joined")
        self._wanted[peer] = rank

    def _told(self, peer: bytes, rank: int) -> Outgoing:
        return peer, [pack("group", rank=rank, servers=list(self.servers))]
