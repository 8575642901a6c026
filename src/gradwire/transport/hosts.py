"""Hosts of the ranks, as the ranks themselves report them.

Invariants:
    A rank's host is identified by its host name, the boot of its kernel and its network namespace. Ranks that agree in
    all three reach each other without the link between hosts. Containers on one machine with networks of their own
    count as different hosts.
"""

from __future__ import annotations

import hashlib
import socket
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gradwire.errors import ConfigError, require
from gradwire.transport.channel import Channel

__all__ = ["Hosts", "hosts_of"]

_DIGEST = 16
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


@dataclass(frozen=True)
class Hosts:
    """The ranks of a group by host, all hosts with equally many.

    Args:
        members: the ranks of each host in increasing order; hosts in the order of their first ranks.
    """

    members: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """The number of ranks of a host."""
        return len(self.members[0])

    def place(self, rank: int) -> tuple[int, int]:
        """The host of a rank, and its number there.

        >>> Hosts(((0, 2), (1, 3))).place(3)
        (1, 1)
        """
        return next((i, ranks.index(rank)) for i, ranks in enumerate(self.members) if rank in ranks)

    def lane(self, number: int) -> tuple[int, ...]:
        """The ranks that have this number on their hosts.

        >>> Hosts(((0, 2), (1, 3))).lane(1)
        (2, 3)
        """
        return tuple(ranks[number] for ranks in self.members)

    @classmethod
    def of(cls, names: Sequence[object]) -> Hosts:
        """Group ranks by the names of their hosts, one for each rank.

        Raises:
            ConfigError: hosts have different numbers of ranks.

        >>> Hosts.of(["a", "b", "a", "b"]).members
        ((0, 2), (1, 3))
        """
        by_name: dict[object, list[int]] = {}
        for rank, name in enumerate(names):
            by_name.setdefault(name, []).append(rank)
        members = tuple(map(tuple, by_name.values()))
        if len({len(ranks) for ranks in members}) > 1:
            counts = "; ".join(f"ranks {', '.join(map(str, ranks))}" for ranks in members)
            raise ConfigError(
                "strategy 'hierarchical' needs equally many ranks on every host, got hosts with "
                f"{counts}: start as many on each, give ranks_per_host, or use strategy='two_phase'"
            )
        return cls(members)

    @classmethod
    def even(cls, world: int, size: int) -> Hosts:
        """Group consecutive ranks, ``size`` to a host.

        Raises:
            ConfigError: ``size`` does not divide ``world``.

        >>> Hosts.even(4, 2).members
        ((0, 1), (2, 3))
        """
        require(world % size == 0, "ranks_per_host", f"a divisor of the number of ranks, {world}", size)
        return cls(tuple(tuple(range(first, first + size)) for first in range(0, world, size)))


def own_host() -> bytes:
    """The identity of this process's host: 16 bytes, the same for all processes that share it."""
    boot = _BOOT.read_text() if _BOOT.exists() else ""
    network = str(_NETWORK.stat().st_ino) if _NETWORK.exists() else ""
    return hashlib.sha256("\n".join((socket.gethostname(), boot, network)).encode()).digest()[:_DIGEST]


# Weakly, because a closed channel must not be kept alive here.
_known: weakref.WeakKeyDictionary[Channel, Hosts] = weakref.WeakKeyDictionary()


def hosts_of(channel: Channel, device: torch.device) -> Hosts:
    """The hosts of a channel's ranks; the first call asks all of them, with 16 bytes from each to each.

    All ranks must make the first call alike.

    Raises:
        ConfigError: hosts have different numbers of ranks.
    """
    if channel not in _known:
        rows = torch.zeros(channel.world, _DIGEST, dtype=torch.uint8, device=device)
        rows[channel.rank].copy_(torch.tensor(list(own_host()), dtype=torch.uint8, device="cpu"))
        # All ranks ask in the same call, so this meets no other message.
        channel.all_gather(rows)
        _known[channel] = Hosts.of([bytes(row) for row in rows.tolist()])
    return _known[channel]
