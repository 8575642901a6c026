"""Pretended ranks: an exchange, and torch's own hooks, on a device that stores no elements."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire.compressors.base import Compressor
from gradwire.engine.exchange import Exchange
from gradwire.metrics import Metrics
from gradwire.transport.recording import RecordingChannel

__all__ = ["PretendedGroup", "pretended_exchange"]


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
    return Exchange(compressor, device="meta", channel=RecordingChannel(world, Metrics(), echoes=False))


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
