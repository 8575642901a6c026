"""Strategy in which each rank broadcasts its payload in turn."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.engine.strategies._gathered import GatheringStrategy

__all__ = ["Broadcast"]


@dataclass(frozen=True)
class Broadcast(GatheringStrategy):
    """The result of ``allgather`` by W broadcasts: slower on Gloo, kept for networks with a real multicast.

    Example:
        >>> Broadcast().to_config()
        {'name': 'broadcast'}
    """

    name = "broadcast"
    kind = "broadcast"
