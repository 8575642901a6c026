"""Messages between some ranks of a group.

Why:
    They are sent over the whole group's own channel, so that one thread issues them in one order with all other
    messages of the group. Two process groups would each have an order of their own, and ranks that come to them in
    different orders would wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwire.errors import ConfigError
from gradwire.transport.channel import Channel

__all__ = ["SubsetChannel"]


class SubsetChannel(Channel):
    """A channel's messages between some of its ranks, this one among them.

    Ranks outside may talk to each other meanwhile. What only a whole group can do, sums and broadcasts of the
    backend, is refused.

    Args:
        whole: the channel of the group.
        ranks: ranks of the whole group, in the order in which they are numbered here.
        local: true: the ranks share a host, so that their traffic is counted as ``local_bytes``, too.
    """

    def __init__(self, whole: Channel, ranks: Sequence[int], *, local: bool = False) -> None:
        super().__init__(None, whole.metrics)
        self.whole, self.ranks, self.local = whole, tuple(ranks), local
        self.rank, self.world = self.ranks.index(whole.rank), len(self.ranks)

    def exchange(self, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> None:
        """Send ``sends[j]`` to the rank numbered j here, and receive ``receives[j]`` from it."""
        if self.world == 1:
            return
        # A message without elements is not posted.
        nothing = torch.empty(0, dtype=torch.uint8, device=sends[self.rank].device)
        out, into = [nothing] * self.whole.world, [nothing] * self.whole.world
        for rank, send, receive in zip(self.ranks, sends, receives, strict=True):
            out[rank], into[rank] = send, receive
        before = self.metrics.bytes_sent
        self.whole.exchange(out, into)
        self.metrics.local_bytes += self.metrics.bytes_sent - before if self.local else 0

    def begin_all_reduce(self, tensor: Tensor, how: str = "sum") -> Callable[[], None]:
        """Refuse, because the backend sums over whole groups only, unless there is nothing to add up."""
        if tensor.numel() == 0:
            return lambda: None
        raise ConfigError("sums of payloads need a whole process group: use strategy='allgather' or 'two_phase'")

    def broadcast(self, rows: Tensor) -> None:
        """Refuse, because the backend broadcasts to whole groups only."""
        raise ConfigError("broadcasts need a whole process group: use strategy='allgather' or 'two_phase'")
