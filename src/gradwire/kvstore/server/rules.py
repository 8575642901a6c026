"""Settings of a server's behaviour, and its counters."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gradwire.kvstore.server.pending import Topic

__all__ = ["Counters", "Rules"]


@dataclass(frozen=True)
class Rules:
    """The settings of a server's behaviour.

    Args:
        workers: number of workers.
        on_dead_worker: "error": the others are told; "continue": steps are made without it.
        dead_after: seconds of silence after which a worker counts as dead, > 0.
        staleness: steps that a worker may be ahead of the slowest, in async; None: any number.
        max_bytes: most bytes of a key's part.
        max_memory: bytes of all values; as much as the machine has.
        max_keys: most keys that a server keeps.
    """

    workers: int
    on_dead_worker: str = "error"
    dead_after: float = 8.0
    staleness: int | None = None
    max_bytes: int = 2**34
    max_memory: int = field(default_factory=lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    max_keys: int = 2**20


@dataclass
class Counters:
    """Counters of a server, for the metrics; those of bytes and pushes by the name of the method."""

    pushes: Counter[str] = field(default_factory=Counter)
    pulls: int = 0
    bytes_in: Counter[str] = field(default_factory=Counter)
    bytes_out: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    waited: float = 0.0
    """Seconds from the first push of a step to its update, of all steps."""
    refused: int = 0
    repeated: int = 0
    begun: dict[tuple[Topic, int], float] = field(default_factory=dict)
    """Times at which the first push of each step came that is not complete."""

    def share(self, begun: tuple[Topic, int], topics: Iterable[Topic]) -> None:
        """Count a begun step of several joined keys as one step of each, because they were separated."""
        if begun in self.begun:
            since = self.begun.pop(begun)
            for topic in topics:
                self.begun.setdefault((topic, begun[1]), since)

    def complete(self, topic: Topic, step: int, now: float, count: int) -> None:
        """Count a step of so many keys that was made."""
        self.steps += count
        self.waited += count * (now - self.begun.pop((topic, step), now))
