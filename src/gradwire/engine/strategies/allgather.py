"""Strategy in which every rank sends its payload to every other, and decodes them all."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.engine.strategies._gathered import GatheringStrategy

__all__ = ["AllGather"]


@dataclass(frozen=True)
class AllGather(GatheringStrategy):
    """One compression, one round; traffic of a rank is (W-1) payloads, so it suits few workers.

    Example:
        >>> AllGather().to_config()
        {'name': 'allgather'}
    """

    name = "allgather"
