"""Strategy of two levels: ranks of a host sum plainly, hosts exchange payloads, one for each host.

    in the host         rank j gets lane j of all its neighbours, in float32, and adds it up
    between the hosts   ranks of the same number exchange payloads of the mean of their hosts, by another strategy
    in the host         rank j hands the mean of lane j over all hosts to its neighbours, in float32

Invariants:
    * With L ranks a host a rank encodes one lane, 1/L of what is compressed, so its memory has zeros elsewhere.
    * A residual is in the unit of the host's sum and not of its mean. So a rank's residual counts 1/W in the mean, as
      under every other strategy, and remains right under another strategy, with another number of ranks, or with other
      lanes.
    * All messages go over one channel in one order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gradwire import kernels, registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.none import Identity
from gradwire.engine.dense import DenseSession, joined
from gradwire.engine.part import Piece, Unit
from gradwire.engine.rollback import Rollback
from gradwire.engine.shards import cut
from gradwire.engine.strategies.base import Session, Site, Strategy, of_messages
from gradwire.errors import ConfigError, is_int, require
from gradwire.kernels.stored import read, write
from gradwire.memory import facts
from gradwire.memory.base import Memory
from gradwire.transport.channel import Channel
from gradwire.transport.collective_round import Round
from gradwire.transport.hosts import Hosts, hosts_of
from gradwire.transport.subset import SubsetChannel
from gradwire.vocabulary import Key

__all__ = ["Hierarchical", "HostLanes", "ranges_of", "rounds_inside"]


@dataclass(frozen=True)
class Hierarchical(Strategy):
    """Sum plainly within each host, and exchange one compressed mean for each host.

    Traffic between hosts: that of ``between`` with one worker for each host; the ranks of a host share it equally.
    Traffic within a host: 2 (L-1)/L of 4 bytes an element. Memory: 4 bytes an element more of what
    is compressed, and a copy of what the lane keeps.

    Args:
        ranks_per_host: consecutive ranks that share a host, a divisor of the number of ranks; None: the ranks find out.
        between: "allgather" or "two_phase", which carries the payloads from host to host; None: ``allgather`` up to 4
            hosts and for what cannot be cut, else ``two_phase``.

    Raises:
        ConfigError: a value outside its range.

    Example:
        >>> Hierarchical(ranks_per_host=8).to_config()
        {'name': 'hierarchical', 'ranks_per_host': 8, 'between': None}
    """

    ranks_per_host: int | None = None
    between: Literal["allgather", "two_phase"] | None = None

    name = "hierarchical"
    by_host = True

    def __post_init__(self) -> None:
        known = self.ranks_per_host is None or is_int(self.ranks_per_host, 1)
        require(known, "Hierarchical.ranks_per_host", "an integer >= 1 or None", self.ranks_per_host)
        ways = ("allgather", "two_phase", None)
        require(self.between in ways, "Hierarchical.between", "'allgather', 'two_phase' or None", self.between)

    def check(self, compressor: Compressor) -> None:
        self.refuse_rounds(compressor)
        if capabilities.advice(compressor):
            raise ConfigError(
                f"strategy 'hierarchical' lets a rank encode a part of each gradient, but {compressor!r} asks every "
                "rank for a wish: use strategy='two_phase' or 'allgather'"
            )
        if self.between is not None:
            registry.build("strategies", self.between).check(compressor)
        if (own := capabilities.memory(compressor)) is not None:
            self.check_memory(registry.build("memory", own))

    def check_memory(self, memory: Memory) -> None:
        if facts.keeps_mean(memory) or memory.squared or facts.dense(memory) is not None:
            raise ConfigError(
                f"strategy 'hierarchical' compresses sums of hosts, but memory {memory.name!r} keeps more of each "
                "rank's own gradient than what was not sent: use strategy='two_phase' or 'allgather'"
            )

    def meet(self, channel: Channel, device: torch.device) -> None:
        self._hosts(channel, device)

    def plan(self, units: Sequence[Unit], site: Site) -> Session:
        return HierarchicalSession(units, site, self._hosts(site.channel, site.device), self)

    def rounds(self, units: Sequence[Unit], workers: int, used: float | None = None) -> tuple[Round, ...]:
        size = self.ranks_per_host or 1
        hosts, across = workers // size, list[Round]()
        for (carrier, _), group in self.grouped(units, hosts).items() if hosts > 1 else ():
            across += carrier.rounds(group, hosts, used)
        if size == 1:
            return tuple(across)
        sums, flags = rounds_inside(4 * sum(unit.numel for unit in units) / size, size)
        # A host's ranks share what it sends to others.
        return sums, flags, *(Round("hosts", each.sent, each.received) for each in across), flags, sums

    def coded(self, compressor: Compressor, workers: int) -> tuple[float, float]:
        size = self.ranks_per_host or 1
        encoded, decoded = self.carrier(compressor, workers // size).coded(compressor, workers // size)
        return encoded / size, decoded / size

    def carrier(self, compressor: Compressor, senders: int) -> Strategy:
        built: Strategy = registry.build("strategies", self.between or of_messages(compressor, senders))
        return built

    def with_hosts_of(self, ranks: int) -> Strategy:
        return replace(self, ranks_per_host=ranks)

    def grouped(self, units: Sequence[Unit], hosts: int) -> dict[tuple[Strategy, bool], list[Unit]]:
        """Group units by the strategy that carries them between hosts, and by whether their memory keeps nothing."""
        groups: dict[tuple[Strategy, bool], list[Unit]] = {}
        for unit in units:
            key = self.carrier(unit.compressor, hosts), facts.keeps_nothing(unit.memory)
            groups.setdefault(key, []).append(unit)
        return groups

    def _hosts(self, channel: Channel, device: torch.device) -> Hosts:
        if self.ranks_per_host is None:
            return hosts_of(channel, device)
        return Hosts.even(channel.world, self.ranks_per_host)


@dataclass(frozen=True)
class LaneSite(Site):
    """The site of the strategy between hosts: the ranks of one lane, with its pieces only."""

    lane: Sequence[Piece] = ()

    def pieces(self, units: Sequence[Unit]) -> list[Piece]:
        """Return the pieces of the lane, which were cut before."""
        return list(self.lane)


class HierarchicalSession(Session):
    """The lanes of a bucket, and a session between hosts for each strategy that carries payloads of this lane."""

    def __init__(self, units: Sequence[Unit], site: Site, hosts: Hosts, strategy: Hierarchical) -> None:
        super().__init__(site.channel)
        host, number = hosts.place(site.channel.rank)
        self.inside = SubsetChannel(site.channel, hosts.members[host], local=True)
        across = SubsetChannel(site.channel, hosts.lane(number))
        # Nothing travels between hosts, so a code would cost quality and save nothing.
        if across.world == 1:
            units = [plainly(unit) for unit in units]
        lanes: list[list[tuple[int, int]]] = [[] for _ in range(hosts.size)]
        self.means: list[tuple[int, int]] = []
        self.sessions: list[Session] = []
        self.share, lane = 1.0 / hosts.size, list[Piece]()
        for (carrier, bare), group in strategy.grouped(units, across.world).items():
            cuts = cut(site.pieces(group), hosts.size)
            # What this rank kept as an owner of other shards is moved with its own, or nobody would send it.
            site.kept.give_up_waiting({name for unit in group for name, _ in unit.members}, cuts[number])
            move_kept(cuts, self.inside)
            for ranges, pieces in zip(lanes, cuts, strict=True):
                ranges += ranges_of(pieces)
            # Memories keep values of the sum, and multiply when they encode.
            self.means += ranges_of(cuts[number]) if bare else []
            scale = 1.0 if bare else self.share
            lane += cuts[number]
            own = LaneSite(across, site.device, site.kept, scale, cuts[number])
            self.sessions.append(carrier.plan(group, own))
        self.lanes = HostLanes([joined(sorted(ranges)) for ranges in lanes], self.inside, site.device)
        # A code may overflow in one lane alone, whose session is undone; what the others have sent is lost then.
        self._undo = Rollback(site.device)
        # Of what is kept of the parameters this rank changes its lane's part, and its own shards.
        changing = site.kept.changing({name for unit in units for name, _ in unit.members})
        self._changing = {name: each for name, each in changing.items() if not name.startswith(("worker/", "states/"))}
        for number, piece in enumerate(lane):
            own_parts = (*piece.kept.items(), *piece.state.items())
            self._changing |= {f"{number}/{name}": each for name, each in own_parts}

    def run(self, flat: Tensor, key: Key, dense: DenseSession) -> Tensor:
        self.lanes.add_up(flat)
        if self.inside.world > 1:
            with self.encoding:
                # One lane may be finite where another is not, and all of them must be undone together.
                self.lanes.spoil(flat, self.lanes.anywhere(self.lanes.nonfinite(flat)))
                # Where a memory keeps nothing the mean itself is encoded.
                for lo, hi in self.means:
                    flat[lo:hi].mul_(self.share)
                self._undo.remember(self._changing)
        bad = torch.stack([session.run(flat, key, dense) for session in self.sessions]).any()
        if self.inside.world > 1:
            # The ranks of a host have seen the status of their own lane only, and all of them must hand out NaN or
            # none.
            bad = self.lanes.anywhere(bad)
            self._undo.note([bad])
            self._undo.end(key.step)
            self.lanes.hand_out(flat)
            with self.decoding:
                self.lanes.spoil(flat, bad, everywhere=True)
        return bad


class HostLanes:
    """The parts of a flat gradient that each rank of a host works on.

    Args:
        ranges: ranges of each rank, in increasing order.
        channel: channel between the ranks of the host.
    """

    def __init__(self, ranges: Sequence[Sequence[tuple[int, int]]], channel: Channel, device: torch.device) -> None:
        self.ranges, self.channel = ranges, channel
        self.own = ranges[channel.rank]
        sizes = [sum(hi - lo for lo, hi in each) for each in ranges]
        # A single range is sent and received in place, without a buffer.
        self.buffers = [
            torch.zeros(size if len(each) > 1 else 0, dtype=torch.float32, device=device)
            for size, each in zip(sizes, ranges, strict=True)
        ]
        others = [0 if rank == channel.rank else sizes[channel.rank] for rank in range(channel.world)]
        self.received = [torch.zeros(size, dtype=torch.float32, device=device) for size in others]
        self.flags = torch.zeros(channel.world, 1, dtype=torch.uint8, device=device)

    def _view(self, rank: int, flat: Tensor) -> Tensor:
        ranges = self.ranges[rank]
        if len(ranges) > 1:
            return self.buffers[rank]
        return flat[ranges[0][0] : ranges[0][1]] if ranges else flat[:0]

    def _pack(self, rank: int, flat: Tensor) -> Tensor:
        if len(self.ranges[rank]) > 1:
            torch.cat([flat[lo:hi] for lo, hi in self.ranges[rank]], out=self.buffers[rank])
        return self._view(rank, flat)

    def _unpack(self, rank: int, flat: Tensor) -> None:
        ranges = self.ranges[rank]
        if len(ranges) > 1:
            parts = torch.split(self.buffers[rank], [hi - lo for lo, hi in ranges])
            torch._foreach_copy_([flat[lo:hi] for lo, hi in ranges], list(parts))

    def add_up(self, flat: Tensor) -> None:
        """Sum this rank's lane over the host; the other lanes stay."""
        if self.channel.world == 1:
            return
        self.channel.exchange([self._pack(rank, flat) for rank in range(self.channel.world)], self.received)
        own = self._view(self.channel.rank, flat)
        for row in self.received:
            if row.numel():
                own.add_(row)
        self._unpack(self.channel.rank, flat)

    def hand_out(self, flat: Tensor) -> None:
        """Send this rank's lane to the others, and receive theirs."""
        own, ranks = self._pack(self.channel.rank, flat), range(self.channel.world)
        self.channel.exchange([own] * self.channel.world, [self._view(rank, flat) for rank in ranks])
        for rank in ranks:
            if rank != self.channel.rank:
                self._unpack(rank, flat)

    def anywhere(self, bad: Tensor) -> Tensor:
        """Return whether a condition holds on any rank of this host."""
        self.flags[self.channel.rank].copy_(bad.view(1))
        # Gathered and not summed, because the backend sums over whole groups only.
        self.channel.all_gather(self.flags)
        return self.flags.ne(0).any()

    def nonfinite(self, flat: Tensor) -> Tensor:
        """Return whether this rank's lane has a value that is not finite."""
        status = torch.zeros(1, dtype=torch.int32, device=flat.device)
        for lo, hi in self.own:
            kernels.nonfinite(flat[lo:hi], status)
        return status.any()

    def spoil(self, flat: Tensor, bad: Tensor, *, everywhere: bool = False) -> None:
        """Write NaN to this rank's lane, or to all lanes, if ``bad``, without waiting for the device."""
        for ranges in self.ranges if everywhere else [self.own]:
            for lo, hi in ranges:
                kernels.fill_where(flat[lo:hi], math.nan, bad.view(1))


def ranges_of(pieces: Sequence[Piece]) -> list[tuple[int, int]]:
    """The ranges of pieces in the bucket."""
    return [(piece.lo, piece.lo + piece.numel) for piece in pieces]


def rounds_inside(lane: float, size: int) -> tuple[Round, Round]:
    """The rounds in which the ranks of a host send their neighbours lanes of so many bytes, and a flag."""
    return Round("local", (size - 1) * lane, (size - 1) * lane), Round("local", size - 1, size - 1)


def plainly(unit: Unit) -> Unit:
    """The unit on a single host: uncompressed, unless the method is more than a code of the mean."""
    more = capabilities.settles(unit.compressor) or capabilities.memory(unit.compressor) is not None
    return unit if more else replace(unit, compressor=Identity())


def move_kept(cuts: Sequence[Sequence[Piece]], channel: Channel) -> None:
    """Move kept tensors to the rank whose lane they are in: it gets their sum over the host, all others get zeros.

    Lanes may have been others in an earlier plan, and what was loaded may be of another strategy.
    """
    if channel.world == 1:
        return
    kept = [[(each, piece.numel) for piece in pieces for each in piece.kept.values()] for pieces in cuts]
    others = [each for rank, lane in enumerate(kept) if rank != channel.rank for each, _ in lane]
    device = next((each.device for lane in kept for each, _ in lane), None)
    if device is None:
        return
    # Most plans find every tensor in place: one byte spares them the exchange. All ranks decide by the same bytes.
    told = torch.zeros(channel.world, 1, dtype=torch.uint8, device=device)
    told[channel.rank] = any(bool(each.any()) for each in others)
    channel.all_gather(told)
    if not bool(told.any()):
        return
    empty = torch.zeros(0, dtype=torch.float32, device=device)
    sends = [torch.cat([empty, *(read(each, numel) for each, numel in lane)]) for lane in kept]
    total = sends[channel.rank].clone()
    received = [torch.empty_like(total) for _ in sends]
    channel.exchange(sends, received)
    for rank, row in enumerate(received):
        if rank != channel.rank:
            total.add_(row)
    own = kept[channel.rank]
    for (each, _), part in zip(own, torch.split(total, [numel for _, numel in own]), strict=True):
        write(each, part)
    for each in others:
        each.zero_()
