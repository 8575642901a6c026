"""Values of a server: its keys, the lists of keys that are joined now, and the progress of each for a worker.

A list is named once; after it a push or a pull of all of its keys has a header as short as one key's.

Invariants:
    ``alone`` returns a key as it would be if nobody had named it together with others. A key within a list is separated
    for that, and the other keys notice nothing but that it takes longer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.keys import StoreKey, found
from gradwire.kvstore.protocol.small_keys import MAX_BATCH, MAX_LISTS, packed
from gradwire.kvstore.server.key_list import KeyList
from gradwire.kvstore.server.members import Members, WorkerSession, workers
from gradwire.kvstore.server.pending import RequestQueue, Topic
from gradwire.kvstore.server.rules import Counters, Rules
from gradwire.kvstore.server.stored_part import StoredPart

__all__ = ["Progress", "ValueFrames", "Values"]


class Progress:
    """The rules of when a step counts as made, as in the value, and as too far ahead."""

    def __init__(self, rules: Rules, members: Members) -> None:
        self.sync: bool | None = None
        """The kind of store; None until the first worker has said it."""
        self.staleness = rules.staleness
        self._members = members

    def version(self, part: StoredPart, rank: int) -> int:
        """The step up to which a worker's pushes are in the value."""
        return part.version if self.sync else part.last.get(rank, 0)

    def durable(self, part: StoredPart, rank: int) -> int:
        """The step up to which a worker's pushes are in the file."""
        return part.durable if self.sync else part.durable_of.get(rank, 0)

    def has_step(self, rank: int, part: StoredPart, step: int) -> bool:
        """Return whether a worker's step is in the value, and not too far ahead of the others."""
        return self.version(part, rank) >= step and self.within_bound(part, step)

    def within_bound(self, part: StoredPart, step: int) -> bool:
        """Return whether a worker that made so many steps of a key need not wait for the slowest."""
        if self.sync or self.staleness is None:
            return True
        return step - min((part.last.get(each, 0) for each in self._members.live), default=step) <= self.staleness

    def missing(self, part: StoredPart, rank: int, step: int) -> Callable[[], str]:
        """Make a function that says what a request waits for, at the time of the call."""

        def text() -> str:
            made, live = self.version(part, rank), self._members.live
            if made < step:
                absent = live - part.pending.get(made + 1, {}).keys() if self.sync else {rank}
                return f"step {step} of {part.title} waits for {workers(absent or {rank})}"
            behind = [each for each in live if step - part.last.get(each, 0) > (self.staleness or 0)]
            return f"step {step} of {part.title} waits for {workers(behind)}, more than {self.staleness} steps behind"

        return text


FRAMES = 16 * MAX_BATCH
"""Bytes of answers that a server keeps for the other workers, who will ask for the same."""


class Values:
    """The keys by their names, and the lists of them.

    Args:
        parts: restored from a snapshot.
    """

    def __init__(self, rules: Rules, pending: RequestQueue, counters: Counters, parts: Iterable[StoredPart]) -> None:
        self.parts: dict[StoreKey, StoredPart] = {part.key: part for part in parts}
        self.nbytes = sum(part.value.nbytes for part in self.parts.values())
        self.lists: dict[tuple[StoreKey, ...], KeyList] = {}
        self._rules, self._pending, self._counters = rules, pending, counters
        self._within: dict[StoreKey, KeyList] = {}
        self._together: dict[Topic, KeyList] = {}
        self._numbers = 0

    def check_room(self, key: StoreKey, nbytes: int) -> None:
        """Refuse one key too many, or a key that is too large.

        Raises:
            ConfigError: there is no room for the key.
        """
        if len(self.parts) >= self._rules.max_keys:
            raise ConfigError(f"this server keeps at most {self._rules.max_keys} keys")
        if self.nbytes + nbytes > self._rules.max_memory:
            raise ConfigError(f"this server keeps at most {self._rules.max_memory} bytes, key {key!r} has {nbytes}")

    def add(self, part: StoredPart) -> None:
        """Add a key."""
        self.parts[part.key] = part
        self.nbytes += part.value.nbytes

    def alone(self, key: StoreKey) -> StoredPart:
        """Find a key by itself, and separate it from the list that it is joined with.

        Raises:
            ConfigError: there is no such key.
        """
        if key in self._within:
            # It may be asked for alone in every step, and each time joining and separating would copy all keys of the
            # list.
            self._within[key].backoff.start()
            self._separate(self._within[key])
        return found(self.parts, key)

    def current(self, steps: Sequence[tuple[StoredPart, int]]) -> list[tuple[StoredPart, int]]:
        """Find the parts that have the steps of units now.

        While a request waited, keys may have been joined or separated. What was joined with other keys is separated.
        """
        parts = []
        for unit, step in steps:
            self._separate_from_others(unit)
            parts += [(part, step) for part in unit.units()]
        return parts

    def units(self) -> list[StoredPart]:
        """List the units that have steps of their own: keys that are alone, and lists that are joined."""
        single = [part for key, part in self.parts.items() if key not in self._within]
        return [*single, *self._together.values()]

    def unit(self, topic: Topic) -> StoredPart | None:
        """Find a unit by the topic under which requests wait for it."""
        return self._together.get(topic) if isinstance(topic, tuple) else self.parts.get(topic)

    def separate_all(self) -> None:
        """Separate all lists, so that every key is as if it had never been joined."""
        for each in list(self._together.values()):
            self._separate(each)

    def mark_durable(self) -> None:
        """Note that all applied steps are on the disk."""
        for unit in self.units():
            unit.durable, unit.durable_of = unit.version, dict(unit.last)

    def listed(self, keys: tuple[StoreKey, ...], sessions: Sequence[WorkerSession]) -> KeyList:
        """Find or make a list of keys, one for all workers that name the same keys. Lists that none of the sessions
        names are forgotten when there are many.

        Raises:
            ConfigError: there is no such key.
            WireError: keys that cannot be together.
        """
        if keys not in self.lists:
            self.lists[keys] = self._checked(keys)
            self._forget_unused(sessions)
        return self.lists[keys]

    def prepare(self, unit: StoredPart) -> None:
        """Prepare a push of a list: join its keys if possible, else leave each of them alone."""
        if not isinstance(unit, KeyList) or unit.are_joined:
            return
        if not unit.backoff.expired():
            self._separate_from_others(unit)
            return
        for other in dict.fromkeys(self._within[key] for key in unit.keys if key in self._within):
            # Two lists with common keys would else separate each other in every step.
            other.backoff.start()
            self._separate(other)
        # A request that waits for one of the keys would not be found under the list's topic.
        if unit.are_alike() and set(unit.keys).isdisjoint(self._pending.topics()):
            unit.join()
            self._within |= dict.fromkeys(unit.keys, unit)
            self._together[unit.topic] = unit

    def _separate_from_others(self, unit: StoredPart) -> None:
        """Separate the keys of a unit from other lists, unless the unit is a list that is joined now."""
        if unit.topic not in self._together:
            for key in unit.keys:
                self.alone(key)

    def _checked(self, keys: tuple[StoreKey, ...]) -> KeyList:
        members = [self.alone(key) for key in keys]
        dtypes = {each.value.dtype for each in members}
        if len(set(keys)) < len(keys) or len(dtypes) > 1:
            raise WireError("keys that are named together are different ones of one type")
        self._numbers += 1
        made = KeyList(self._numbers, members)
        if made.nbytes > MAX_BATCH:
            raise WireError(f"keys that are named together have at most {MAX_BATCH} bytes, not {made.nbytes}")
        return made

    def _forget_unused(self, sessions: Sequence[WorkerSession]) -> None:
        """Forget lists that only workers had named that are gone."""
        if len(self.lists) <= MAX_LISTS * (self._rules.workers + 1):
            return
        used = {each.topic for session in sessions for each in session.lists.values()}
        for keys, each in list(self.lists.items()):
            # The newest list was just made, and no session names it yet.
            if each.topic not in used and keys != next(reversed(self.lists)):
                if each.are_joined:
                    self._separate(each)
                del self.lists[keys]

    def _separate(self, whole: KeyList) -> None:
        for step in whole.pending:
            self._counters.share((whole.topic, step), whole.keys)
        whole.separate()
        del self._together[whole.topic]
        for key in whole.keys:
            del self._within[key]
        self._pending.touch(*(each.key for each in whole.members if each.pending))
        # Requests that waited for the list wait for its keys now.
        self._pending.again += self._pending.take_all(whole.topic)


class ValueFrames:
    """A cache of answers with the values of several units, because all workers pull the same ones."""

    def __init__(self) -> None:
        self._frames: OrderedDict[tuple[Topic, ...], tuple[list[int], Tensor]] = OrderedDict()
        self._nbytes = 0

    def of(self, units: Sequence[StoredPart]) -> Tensor:
        """Return the bytes of these units now."""
        topics = tuple(unit.topic for unit in units)
        versions = [part.version for unit in units for part in unit.units()]
        known = self._frames.get(topics)
        if known is not None and known[0] == versions:
            return known[1]
        data = packed([unit.data() for unit in units])
        self._frames[topics] = versions, data
        self._frames.move_to_end(topics)
        self._nbytes += data.numel() - (0 if known is None else known[1].numel())
        # Answers of few bytes cost more than their bytes.
        while self._nbytes > FRAMES or len(self._frames) > MAX_LISTS:
            self._nbytes -= self._frames.popitem(last=False)[1][1].numel()
        return data
