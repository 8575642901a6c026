"""Compressed reduce-scatter: every rank sends each owner its part, and the owner computes the mean.

Invariants:
    * The caller cuts the gradient, so that whole rows of a parameter go to one owner.
    * Each message carries the status of its sender's whole gradient, so all ranks learn from the messages alone whether
      the step counts.
    * A rank sends and receives (W-1)/W of a payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.engine.dense import DenseSession, joined
from gradwire.engine.part import Message, Part, Piece
from gradwire.engine.strategies.base import Site
from gradwire.engine.strategies.hierarchical import HostLanes, ranges_of, rounds_inside
from gradwire.transport.channel import Channel
from gradwire.transport.collective_round import Round, to_all
from gradwire.transport.hosts import Hosts
from gradwire.transport.subset import SubsetChannel
from gradwire.vocabulary import Key

__all__ = ["HostScatterSession", "ScatterSession", "rounds_to_owners"]


def rounds_to_owners(sent: float, workers: int, plain: float = 0.0, size: int = 1) -> tuple[Round, ...]:
    """The rounds in which every rank sends each owner its part.

    Args:
        sent: bytes of the payload of one owner's part.
        workers: ranks that reduce.
        plain: bytes of such a part uncompressed, which ranks of a host send each other.
        size: ranks of a host that sum plainly first; 1: none do.
    """
    if size == 1:
        return (to_all(sent, workers),)
    hosts = workers // size
    across = size * (hosts - 1) * sent
    return *rounds_inside(hosts * plain, size), Round("hosts", across, across)


class ScatterSession:
    """The messages and buffers of one division of a bucket.

    Args:
        shards: pieces of each owner, with ``lo`` in the whole gradient.
        site: site where the session runs.
    """

    def __init__(self, shards: Sequence[Sequence[Piece]], site: Site) -> None:
        self.channel: Channel = site.channel
        self.parts = [Part(pieces) for pieces in shards]
        self.sends = [Message(part.packing, site.device) for part in self.parts]
        own = self.parts[self.channel.rank]
        self.receives = Message(own.packing, site.device, rows=self.channel.world)
        # ``out`` is the own part alone: places in it count from the beginning of the part.
        start = own.pieces[0].lo
        self.owned = Part([replace(piece, lo=piece.lo - start) for piece in own.pieces])
        advised = [piece.state for pieces in shards for piece in pieces if capabilities.advice(piece.unit.compressor)]
        self.wishes = DenseSession([], self.channel, site.device, advised)

    def run(self, flat: Tensor, out: Tensor, key: Key, scale: float) -> Tensor:
        """Set ``out`` to ``scale`` times the sum over the ranks of this rank's part.

        Args:
            flat: the whole gradient, contiguous float32; overwritten.
            out: contiguous float32, as many elements as the own pieces have.

        Returns:
            bool of one element: whether some rank had a value that is not finite. Then ``out`` is NaN on every rank,
            and all memories are as they were.
        """
        # Every rank starts the same collectives in the same order: the wishes, then the payloads.
        self.wishes.begin(flat)
        with self.channel.metrics.timed("encode"):
            self._encode(flat, key)
        # A rank sends itself nothing: the exchange leaves its own row alone.
        self.receives.buffer[self.channel.rank].copy_(self.sends[self.channel.rank].buffer)
        self.channel.exchange([send.buffer for send in self.sends], list(self.receives.buffer.unbind(0)))
        # Waited for after the payloads, so that both travel at the same time.
        self.wishes.arrive()
        with self.channel.metrics.timed("decode"):
            bad = self.receives.status.ne(0).any()
            # Undone from the values in ``flat``, which nobody has overwritten: the mean goes to ``out``.
            self._take_back(flat, bad)
            self.owned.decode_once(self.receives, out, scale)
            self.owned.settle(out)
            self.owned.spoil(out, bad)
        return bad

    def _encode(self, flat: Tensor, key: Key) -> None:
        for part, message in zip(self.parts, self.sends, strict=True):
            part.encode(flat, message, key)
        # A value that is not finite in one part spoils the whole step, so every owner is told and not only that part's.
        status = torch.cat([message.status for message in self.sends]).amax()
        for message in self.sends:
            message.status.fill_(status)

    def _take_back(self, flat: Tensor, bad: Tensor) -> None:
        """Undo the encoding: on the CPU by a branch, on an accelerator by a select, so that nothing waits."""
        on_cpu = flat.device.type == "cpu"
        for part in self.parts if not on_cpu or bool(bad) else ():
            if on_cpu:
                part.rollback(flat)
            else:
                part.restore(flat, bad)


class HostScatterSession:
    """A reduce-scatter of two levels: the ranks of a host sum plainly, and hosts send each other payloads of the sums.

        in the host          rank j gets from its neighbours the parts of all owners that have number j on their hosts
        between the hosts    ranks of the same number send each other payloads of these parts, as ``ScatterSession``

    The payload of a part leaves a host once, and not once for each of its ranks: with L ranks a host the traffic
    between hosts is an L-th, at the price of 4 bytes an element inside. A host is finite or not as a whole, so all
    owners learn the same from their messages. Memories must keep nothing, because a rank encodes its own lane alone.

    Args:
        shards: pieces of each owner, with ``lo`` in the whole gradient.
        site: site where the session runs.
        hosts: hosts of the site's ranks.
    """

    def __init__(self, shards: Sequence[Sequence[Piece]], site: Site, hosts: Hosts) -> None:
        host, number = hosts.place(site.channel.rank)
        self.metrics = site.channel.metrics
        self.parts = [Part(pieces) for pieces in shards]
        inside = SubsetChannel(site.channel, hosts.members[host], local=True)
        across = SubsetChannel(site.channel, hosts.lane(number))
        owned = [[piece for owner in hosts.lane(j) for piece in shards[owner]] for j in range(hosts.size)]
        self.lanes = HostLanes([joined(sorted(ranges_of(pieces))) for pieces in owned], inside, site.device)
        self.session = ScatterSession([shards[owner] for owner in hosts.lane(number)], replace(site, channel=across))

    def run(self, flat: Tensor, out: Tensor, key: Key, scale: float) -> Tensor:
        """Do what ``ScatterSession.run`` does."""
        self.lanes.add_up(flat)
        with self.metrics.timed("encode"):
            # One lane may be finite where another is not, and the owners of both must undo the step.
            self.lanes.spoil(flat, self.lanes.anywhere(self.lanes.nonfinite(flat)))
        return self.session.run(flat, out, key, scale)
