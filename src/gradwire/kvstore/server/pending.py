"""Requests that cannot be answered yet, by the topic that they wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from gradwire.errors import WireError
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.messages import Outgoing

__all__ = ["KEPT", "PendingRequest", "RequestQueue", "Topic"]


Topic: TypeAlias = StoreKey | tuple[str, int]
"""Topics that a request can wait for: something about a key, or a numbered barrier."""

KEPT: Topic = ("kept", 0)
"""The topic of all that waits for the server's file."""

MAX_WAITING = 2**16
"""Requests of one worker that wait: it has one for each key that it pulls at a time."""


@dataclass(eq=False)
class PendingRequest:
    """A waiting request: its sender, what it waits for in words, its condition, and its answer."""

    peer: bytes
    seq: int
    what: Callable[[], str]
    ready: Callable[[], bool]
    answer: Callable[[], list[Outgoing]]


class RequestQueue:
    """All waiting requests; the cost of looking at one topic is that of its requests, however many keys there are."""

    def __init__(self) -> None:
        self._by_topic: dict[Topic, dict[tuple[bytes, int], PendingRequest]] = {}
        self._count: Counter[bytes] = Counter()
        self.touched: dict[Topic, None] = {}
        """Topics about which something has changed, in order; the core looks at the requests that wait for them."""
        self.again: list[PendingRequest] = []
        """Requests that waited for something that is no more: they are looked at anew."""

    def __len__(self) -> int:
        return self._count.total()

    def __contains__(self, topic: Topic) -> bool:
        """Return whether a request waits for a topic."""
        return topic in self._by_topic

    def topics(self) -> list[Topic]:
        """List the topics that a request waits for."""
        return list(self._by_topic)

    def touch(self, *topics: Topic) -> None:
        """Note that something about these topics has changed."""
        self.touched |= dict.fromkeys(topics)

    def add(self, topic: Topic, waiting: PendingRequest) -> None:
        """Add a request; one that comes again waits once.

        Raises:
            WireError: the request's worker has too many.
        """
        those = self._by_topic.setdefault(topic, {})
        # A worker that connects again repeats what was not answered.
        if (waiting.peer, waiting.seq) in those:
            return
        if self._count[waiting.peer] >= MAX_WAITING:
            raise WireError(f"a worker has at most {MAX_WAITING} requests that wait")
        those[waiting.peer, waiting.seq] = waiting
        self._count[waiting.peer] += 1

    def take_ready(self, topic: Topic) -> list[PendingRequest]:
        """Take out the requests that can be answered."""
        return self._take(topic, lambda each: each.ready())

    def take_all(self, topic: Topic) -> list[PendingRequest]:
        """Take out the requests that wait for a topic."""
        return self._take(topic, lambda _: True)

    def take_stuck(self) -> list[PendingRequest]:
        """Take out all requests that cannot be answered and wait for another worker."""
        topics = [topic for topic in self.topics() if topic != KEPT]
        return [each for topic in topics for each in self._take(topic, lambda each: not each.ready())]

    def reason(self, peer: bytes, seq: int) -> str:
        """Say in words what a request waits for; empty if it does not wait."""
        those = (each.get((peer, seq)) for each in self._by_topic.values())
        return next((waiting.what() for waiting in those if waiting is not None), "")

    def drop(self, peer: bytes) -> None:
        """Drop the requests of a worker that is gone."""
        for topic in self.topics() if self._count[peer] else ():
            self._take(topic, lambda each: each.peer == peer)
        self._count.pop(peer, None)
        self.again = [each for each in self.again if each.peer != peer]

    def _take(self, topic: Topic, which: Callable[[PendingRequest], bool]) -> list[PendingRequest]:
        those = self._by_topic.get(topic, {})
        taken = [each for each in those.values() if which(each)]
        for each in taken:
            del those[each.peer, each.seq]
            self._count[each.peer] -= 1
        if not those:
            self._by_topic.pop(topic, None)
        return taken
