"""Requests that cannot be answered yet, by what they wait for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from gradwire.kvstore.keys import StoreKey

__all__ = ["Outgoing", "Topic", "Waiting", "Waits"]

Outgoing: TypeAlias = tuple[bytes, list[Any]]
"""To whom, and the frames."""

Topic: TypeAlias = StoreKey | tuple[str, int]
"""What a request can wait for: something about a key, or a numbered barrier."""


@dataclass(eq=False)
class Waiting:
    """A request: whose, what it waits for in words, whether it can be answered now, and how."""

    peer: bytes
    seq: int
    what: str
    ready: Callable[[], bool]
    answer: Callable[[], list[Outgoing]]


class Waits:
    """All of them; looking at one topic costs what waits for it, however many keys there are."""

    def __init__(self) -> None:
        self._by_topic: dict[Topic, list[Waiting]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_topic.values()))

    def topics(self) -> set[Topic]:
        """Those that something waits for."""
        return set(self._by_topic)

    def add(self, topic: Topic, waiting: Waiting) -> None:
        """Wait; a request that comes again waits once."""
        those = self._by_topic.setdefault(topic, [])
        if not any(each.peer == waiting.peer and each.seq == waiting.seq for each in those):
            those.append(waiting)

    def take_ready(self, topic: Topic) -> list[Waiting]:
        """Take out those that can be answered."""
        return self._take(topic, lambda each: each.ready())

    def take_stuck(self) -> list[Waiting]:
        """Take out all that cannot be answered."""
        return [each for topic in self.topics() for each in self._take(topic, lambda each: not each.ready())]

    def drop(self, peer: bytes) -> None:
        """Nobody is there any more to be answered."""
        for topic in self.topics():
            self._take(topic, lambda each: each.peer == peer)

    def _take(self, topic: Topic, which: Callable[[Waiting], bool]) -> list[Waiting]:
        those = self._by_topic.pop(topic, [])
        taken = [each for each in those if which(each)]
        if left := [each for each in those if each not in taken]:
            self._by_topic[topic] = left
        return taken
