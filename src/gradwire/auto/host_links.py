"""Links of hosts that have several ranks each: how fast they are, and whether the ranks of a host share one.

For L ranks on each of H hosts, W = L H, and s from 1 (every rank has a link of its own) to L (all share one):

    all_reduce    c edges of the ring leave a host    b (1 + (c - 1)(s - 1)/(L - 1)) / beta
    exchange      (W - L)/(W - 1) of it leaves        b s (W - L)/(W - 1) / beta, beside b (L - 1)/(W - 1) / beta'
    hosts         each rank has an L-th of it         b s/L / beta
    local         nothing leaves                      b / beta'

b are the bytes that a rank sends, of ``hosts`` those that a host sends; beta is the rate of one rank's messages to
another host while its neighbours are silent, and beta' that of its messages inside the host. Uncompressed steps show
beta by their ring; s and beta' are measured once, when there is something to gain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from gradwire.auto.link_cost import LATENCY, Wire
from gradwire.auto.step_record import between, moment, reduced
from gradwire.transport.channel import Channel
from gradwire.transport.collective_round import Round
from gradwire.transport.hosts import Hosts
from gradwire.transport.subset import SubsetChannel

__all__ = ["HostWire", "measured"]

TINY, SPAN, LEAST, MOST = 64, 0.05, 1 << 16, 1 << 22
"""Bytes of the messages that show latencies; seconds that those which show rates take, about, and their bytes at least
and at most."""

RUNS = 3


@dataclass(frozen=True)
class HostWire(Wire):
    """The parameters of the links of hosts with several ranks.

    Args:
        size: ranks of a host, >= 2.
        crossings: edges of the ring of all ranks that leave a host, of the host with the most.
        shared: factor by which messages to other hosts are slower if all ranks of a host send, 1 to ``size``.
        between: seconds of a message to another host, >= 0.
        inside: bytes a second of a rank's messages to its neighbours on the host, > 0.
        local: seconds of such a message, >= 0.

    Example:
        >>> wire = HostWire(4, rate=1e6, latency=0.0, message=0.0, size=2, shared=2.0, between=0.0, local=0.0)
        >>> wire.seconds(Round("all_reduce", 3e6, 3e6)), wire.seconds(Round("exchange", 3e6, 3e6))
        (3.0, 4.0)
        >>> wire.seconds(Round("hosts", 3e6, 3e6)), wire.seconds(Round("local", 3e6, 3e6))
        (3.0, 0.0)
    """

    size: int = 2
    crossings: int = 1
    shared: float = 1.0
    between: float = LATENCY
    inside: float = math.inf
    local: float = LATENCY

    def alpha(self, each: Round) -> float:
        if each.nbytes == 0 or each.kind not in ("exchange", "hosts", "local"):
            return super().alpha(each)
        if each.kind == "local":
            return self.local + (self.size - 1) * self.message
        peers = self.workers - 1 if each.kind == "exchange" else self.workers // self.size - 1
        return self.between + peers * self.message

    def fixed(self, each: Round) -> float:
        return self.seconds(each) if each.kind == "local" else self.alpha(each)

    def load(self, each: Round) -> float:
        if each.kind == "local":
            return 0.0
        if each.kind == "hosts":
            return each.nbytes * self.shared / self.size
        if each.kind == "exchange":
            return each.nbytes * self.shared * (self.workers - self.size) / (self.workers - 1)
        return super().load(each) * self.ring_factor

    def transfer(self, each: Round) -> float:
        stays = {"local": 1.0, "exchange": (self.size - 1) / (self.workers - 1)}.get(each.kind, 0.0)
        return max(super().transfer(each), stays * each.nbytes / self.inside)

    @property
    def ring_factor(self) -> float:
        """The factor by which a ring is slower than a single rank's messages to another host."""
        return 1 + (self.crossings - 1) * (self.shared - 1) / (self.size - 1)


def measured(channel: Channel, device: torch.device, hosts: Hosts, ring: Wire) -> HostWire:
    """Measure the links between the hosts and inside them. All ranks must call it alike.

    Args:
        channel: channel of all ranks.
        device: device that the channel serves.
        hosts: hosts of the ranks; at least two, of at least two ranks each.
        ring: the link as uncompressed steps have shown it, all ranks taken for hosts of their own.
    """
    host, number = hosts.place(channel.rank)
    inside = SubsetChannel(channel, hosts.members[host], local=True)
    across = SubsetChannel(channel, hosts.lane(number))
    nbytes = int(min(MOST, max(LEAST, SPAN * ring.rate)))
    found = [_times(channel, device, each, size) for each in (inside, across) for size in (TINY, nbytes)]
    # An exchange is over when the last rank has it; of several exchanges the fastest counts.
    slowest = reduced([seconds for times in found for seconds in times], channel, device, "max")
    local, filled, between_hosts, crossing = (min(slowest[i : i + RUNS]) for i in range(0, 4 * RUNS, RUNS))
    edges = _crossings(hosts)
    shared = _shared(_seconds(between_hosts, crossing, nbytes) * ring.rate, edges, hosts.size)
    made = HostWire(
        channel.world,
        ring.rate,
        ring.latency,
        ring.message,
        size=hosts.size,
        crossings=edges,
        shared=shared,
        between=between_hosts,
        inside=1 / _seconds(local, filled, nbytes),
        local=local,
    )
    return made.at_rate(ring.rate * made.ring_factor)


def _seconds(tiny: float, large: float, nbytes: int) -> float:
    """The seconds of a byte, from those of a tiny message and of a large one."""
    return max(large - tiny, 0.2 * large, 1e-9) / nbytes


def _shared(slower: float, crossings: int, size: int) -> float:
    """By what factor messages are slower if all ranks of a host send, from how much slower they are than a ring.

    >>> _shared(2.0, 1, 2), _shared(0.9, 1, 2), _shared(1.0, 2, 2), _shared(2.0, 2, 4)
    (2.0, 1.0, 1.0, 4.0)
    """
    share = (crossings - 1) / (size - 1)
    if share >= 1:
        return 1.0  # The ring itself is as slow as that.
    if slower * share >= 1:
        return float(size)
    return min(float(size), max(1.0, slower * (1 - share) / (1 - slower * share)))


def _crossings(hosts: Hosts) -> int:
    """The edges of the ring of ranks that leave a host, of the host with the most.

    >>> _crossings(Hosts(((0, 1), (2, 3)))), _crossings(Hosts(((0, 2), (1, 3))))
    (1, 2)
    """
    world = hosts.size * len(hosts.members)
    return max(sum((rank + 1) % world not in ranks for rank in ranks) for ranks in hosts.members)


def _times(channel: Channel, device: torch.device, some: SubsetChannel, nbytes: int) -> list[float]:
    """The seconds of several exchanges of so many bytes a rank, each of which all ranks begin together."""
    share = max(1, nbytes // (some.world - 1))
    sends = torch.zeros(some.world, share, dtype=torch.uint8, device=device)
    receives, together = torch.empty_like(sends), torch.zeros(1, dtype=torch.float32, device=device)
    found = []
    for _ in range(1 + RUNS):
        # All ranks begin the exchange together, or the time would be that of the one that comes last.
        channel.all_reduce(together)
        start = moment(device)
        some.exchange(list(sends), list(receives))
        found.append(between(start, moment(device)))
    return found[1:]
