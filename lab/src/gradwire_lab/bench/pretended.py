"""Pretended ranks: the collectives of an exchange on a device that stores no elements.

Invariants:
    Only what lies below a channel is replaced, and it moves nothing. Everything above it, plans, memories, methods and
    strategies, is what a real exchange runs. Ranks that do not exist have nothing to compare, so the 32 bytes with
    which each step begins are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire.compressors.base import Compressor
from gradwire.engine.exchange import Exchange
from gradwire.metrics import Metrics
from gradwire.transport.channel import Channel

__all__ = ["PretendedChannel", "PretendedGroup", "pretended_exchange"]


class PretendedChannel(Channel):
    """A channel of rank 0 of ``world`` ranks whose collectives are counted, with their bytes, and do nothing.

    Args:
        world: the number of ranks, >= 1.
        metrics: receives the byte counts.
    """

    compares = False

    def __init__(self, world: int, metrics: Metrics) -> None:
        super().__init__(None, metrics)
        self.world, self.members = world, list(range(world))

    def begin_all_reduce(self, tensor: Tensor, how: str = "sum") -> Callable[[], None]:
        """Count an all-reduce."""
        if self.world > 1 and tensor.numel():
            self._pretend(2 * (self.world - 1) * tensor.nbytes // self.world)
        return lambda: None

    def exchange(self, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> None:
        """Count messages to each other rank as one collective."""
        if self.world > 1:
            self._pretend(sum(each.nbytes for rank, each in enumerate(sends) if rank != self.rank))

    def broadcast(self, rows: Tensor) -> None:
        """Count the broadcasts of all ranks as one collective."""
        if self.world > 1 and rows.numel():
            self._pretend((self.world - 1) * rows[0].nbytes)

    def settle(self) -> None:
        """Compare nothing, because there are no other ranks."""

    def _pretend(self, nbytes: int) -> None:
        self.traffic.begun += 1
        self.traffic.ended += 1
        self.metrics.bytes_sent += nbytes
        self.metrics.bytes_received += nbytes


def pretended_exchange(compressor: Compressor, world: int) -> Exchange:
    """Make an exchange on the ``meta`` device that acts as rank 0 of ``world`` ranks.

    Args:
        compressor: compressor with its default memory and strategy.
        world: the number of ranks, >= 1.

    Raises:
        ConfigError: a combination that cannot work.

    Example:
        >>> from gradwire.compressors.casts.bf16 import BF16
        >>> exchange = pretended_exchange(BF16(), 4)
        >>> exchange.begin_step()
        >>> exchange.run(torch.empty(4096, device="meta"), [("weight", (64, 64))])
        >>> exchange.counters.bytes_sent
        12288
    """
    return Exchange(compressor, device="meta", channel=PretendedChannel(world, Metrics()))


class PretendedGroup(dist.ProcessGroup):
    """A process group for torch's own hooks, as rank 0 of ``world`` ranks; its all-reduce is counted and does nothing.

    Args:
        world: the number of ranks.

    Attributes:
        begun: collectives so far.
        nbytes: bytes that a ring would have sent for the all-reduces.
    """

    def __init__(self, world: int) -> None:
        super().__init__(0, world)  # type: ignore[call-arg]
        self.begun = self.nbytes = 0

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Count an all-reduce."""
        self.begun += 1
        self.nbytes += sum(2 * (self.size() - 1) * each.nbytes // self.size() for each in tensors)
        devices = [each.device for each in tensors if each.is_cuda]
        future: Future[list[Tensor]] = Future(devices=devices[:1])
        future.set_result(tensors)
        c10d: Any = torch._C._distributed_c10d
        made: dist.Work = c10d._create_work_from_future(future)
        return made
