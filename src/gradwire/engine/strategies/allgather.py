"""Strategy in which every rank sends its payload to every other, and decodes them all."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gradwire.engine.strategies._gathered import GatheringStrategy
from gradwire.transport.channel import Channel

__all__ = ["AllGather"]


@dataclass(frozen=True)
class AllGather(GatheringStrategy):
    """One compression, one round; traffic of a rank is (W-1) payloads, so it suits few workers.

    Example:
        >>> AllGather().to_config()
        {'name': 'allgather'}
    """

    name = "allgather"

    @staticmethod
    def move(channel: Channel, rows: Tensor, headed: Tensor | None) -> None:
        channel.all_gather(rows, headed)
