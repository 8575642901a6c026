"""Exchanges whose messages go by the host's memory, as those of a GPU do over Gloo."""

from __future__ import annotations

import torch
import torch.distributed as dist

from gradwire.engine.exchange import Exchange
from gradwire.engine.settings import build_compressor
from gradwire.transport.channel import Channel
from tests.strategies.jobs import SHAPES, gradient, numel


class HostChannel(Channel):
    """Takes every tensor for one that Gloo cannot send from where it is."""

    copied = 0

    def _by_host(self, tensors):
        self.copied += len(tensors)
        return True


def averaged(rank: int, method: str, strategy: str | None, by_host: bool) -> tuple[bytes, int]:
    """Two steps; their means, and how many tensors were copied."""
    exchange = Exchange(build_compressor(method, {}), strategy=strategy, group=dist.new_group())
    exchange.channel.__class__ = HostChannel if by_host else Channel
    means = []
    for step in range(2):
        flat = gradient(step, rank, numel(SHAPES))
        exchange.begin_step()
        exchange.run(flat, SHAPES)
        means.append(flat)
    return torch.cat(means).numpy().tobytes(), getattr(exchange.channel, "copied", 0)
