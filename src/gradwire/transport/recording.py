"""A channel of ranks that do not exist, which records what a real one would carry.

Why:
    Only what lies below a channel is replaced. Everything above it, plans, memories, methods and strategies, is what a
    real exchange runs, so that its time, its operations and its bytes can be known without a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from gradwire.metrics import Metrics
from gradwire.transport.channel import Channel
from gradwire.transport.collective_round import Round, ring, to_all

__all__ = ["RecordingChannel"]


class RecordingChannel(Channel):
    """A channel for one of ``world`` ranks that do not exist: rounds are recorded, counted, and end at once.

    Ranks that do not exist have nothing to compare, so the rows with which each step begins are left out.

    Args:
        world: number of pretended ranks, >= 1.
        metrics: counts the bytes, as for ``Channel``.
        rank: number of this one, 0 to ``world`` - 1.
        echoes: true: each peer is taken to send what this rank would send in its place, so that decoders do the work of
            all payloads. False: nothing is written, as on ``meta``, where a copy would count as an operation.

    Attributes:
        rounds: the rounds so far, in the order in which they were asked for.
        inside: seconds spent here, which a real channel would not spend.

    Example:
        >>> import torch
        >>> channel = RecordingChannel(4, Metrics())
        >>> channel.all_reduce(torch.zeros(1000))
        >>> channel.rounds, channel.metrics.bytes_sent
        ([Round(kind='all_reduce', sent=6000.0, received=6000.0)], 6000)
    """

    compares = False

    def __init__(self, world: int, metrics: Metrics, rank: int = 0, *, echoes: bool = True) -> None:
        super().__init__(None, metrics)
        self.world, self.rank, self.members = world, rank, list(range(world))
        self.peers = [j for j in self.members if j != rank]
        self.echoes, self.inside = echoes, 0.0
        self.rounds: list[Round] = []
        self._sent: list[Tensor] = []

    def begin_rows(self, rows: Tensor) -> Callable[[], None]:
        """Note the rows with which a step begins; they travel beside the first encode, and no round waits for them."""
        return lambda: None

    def begin_all_reduce(self, tensor: Tensor, how: str = "sum") -> Callable[[], None]:
        """Record a sum over a ring."""
        if self.peers and tensor.numel():
            self._record(ring(tensor.nbytes, self.world))
        return lambda: None

    def exchange(self, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> None:
        """Record messages to each peer, and answer them."""
        if not self.peers:
            return
        start = self.metrics.clock()
        if self.echoes:
            for j in self.peers:
                _fill(receives[j], [sends[self.rank], sends[j], *self._sent[j : j + 1]])
            self._sent = list(sends)
        sent, received = (sum(side[j].nbytes for j in self.peers) for side in (sends, receives))
        self._record(Round("exchange", sent, received))
        self.inside += self.metrics.clock() - start

    def broadcast(self, rows: Tensor) -> None:
        """Record the broadcasts of all ranks as one round."""
        if not self.peers or rows.numel() == 0:
            return
        start = self.metrics.clock()
        if self.echoes:
            for j in self.peers:
                rows[j].copy_(rows[self.rank])
        self._record(to_all(rows[0].nbytes, self.world, "broadcast"))
        self.inside += self.metrics.clock() - start

    def _record(self, carried: Round) -> None:
        self.rounds.append(carried)
        self.traffic.begun += 1
        self.traffic.ended += 1
        self._count(int(carried.sent), int(carried.received))


def _fill(room: Tensor, found: Sequence[Tensor]) -> None:
    """Fill a received message with the first of its size, because a payload of another size would be invalid."""
    for message in found:
        if message.numel() == room.numel() and message.data_ptr() != room.data_ptr():
            room.copy_(message)
            return
