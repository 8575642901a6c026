"""The values of a server: its keys, the lists of keys that are together now, and how far each is for a worker.

A list is named once; after it a push or a pull of all of its keys has a header as short as one key's. ``alone`` finds a
key as it would be if nobody had named it together with others; where it is within a list, it puts that list apart, and
the others notice nothing but that it takes longer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.small_keys import MAX_JOINTS, ROOM, Bundle
from gradwire.kvstore.server.joint import JoinedParts, Joint
from gradwire.kvstore.server.members import Members, WorkerSession, workers
from gradwire.kvstore.server.parts import Contribution, StoredPart, raw
from gradwire.kvstore.server.rules import Counters, Rules
from gradwire.kvstore.server.waiting import Topic, Waits

__all__ = ["Progress", "ValueFrames", "Values"]


class Progress:
    """What counts as made, as there, and as too far ahead.

    Args:
        rules: how the server behaves.
        members: who is there.
    """

    def __init__(self, rules: Rules, members: Members) -> None:
        self.sync: bool | None = None
        """The kind of store; None until the first worker has said it."""
        self.staleness = rules.staleness
        self._rules, self._members = rules, members

    def version(self, part: StoredPart, rank: int) -> int:
        """The step up to which a worker's pushes are in the value."""
        return part.version if self.sync else part.last.get(rank, 0)

    def durable(self, part: StoredPart, rank: int) -> int:
        """The step up to which a worker need not keep its pushes."""
        if not self._rules.snapshots:
            return self.version(part, rank)
        return part.durable if self.sync else part.durable_of.get(rank, 0)

    def reached(self, rank: int, parts: Sequence[StoredPart]) -> tuple[int, int]:
        """The step up to which a worker's pushes of all of them are in the values, and need not be kept."""
        versions = (self.version(part, rank) for part in parts)
        return min(versions, default=0), min((self.durable(part, rank) for part in parts), default=0)

    def has_step(self, part: StoredPart, rank: int, step: int) -> bool:
        """Whether a worker's step is in the value, and not too far ahead of the others."""
        return self.version(part, rank) >= step and self.within_bound(part, step)

    def within_bound(self, part: StoredPart, step: int) -> bool:
        """Whether a worker that made so many steps of a key need not wait for the slowest."""
        if self.sync or self.staleness is None:
            return True
        return step - min((part.last.get(rank, 0) for rank in self._members.live), default=step) <= self.staleness

    def missing(self, part: StoredPart, rank: int, step: int) -> Callable[[], str]:
        """What a request waits for, in the words of the moment at which that is asked."""

        def text() -> str:
            made, live = self.version(part, rank), self._members.live
            if made < step:
                absent = live - part.pending.get(made + 1, {}).keys() if self.sync else {rank}
                return f"step {step} of {part.title} waits for {workers(absent or {rank})}"
            behind = [each for each in live if step - part.last.get(each, 0) > (self.staleness or 0)]
            return f"step {step} of {part.title} waits for {workers(behind)}, more than {self.staleness} steps behind"

        return text


FRAMES = 16 * ROOM
"""Bytes of answers that a server keeps for the other workers, who will ask for the same."""


class Values:
    """Keys by their names, and lists of them.

    Args:
        rules: how the server behaves.
        waits: what waits for keys and lists.
        counters: that know when a step was begun.
        parts: restored from a snapshot.
    """

    def __init__(self, rules: Rules, waits: Waits, counters: Counters, parts: Iterable[StoredPart]) -> None:
        self.parts: dict[StoreKey, StoredPart] = {part.key: part for part in parts}
        self.nbytes = sum(part.value.nbytes for part in self.parts.values())
        self.lists: dict[tuple[StoreKey, ...], Joint] = {}
        self._rules, self._waits, self._counters = rules, waits, counters
        self._within: dict[StoreKey, Joint] = {}
        self._together: dict[Topic, Joint] = {}
        self._numbers = 0

    # Keys ------------------------------------------------------------------------------------------------------------

    def check_room(self, key: StoreKey, nbytes: int) -> None:
        """Refuse one key too many, or one that is too large.

        Raises:
            ConfigError: it is.
        """
        if len(self.parts) >= self._rules.max_keys:
            raise ConfigError(f"this server keeps at most {self._rules.max_keys} keys")
        if self.nbytes + nbytes > self._rules.max_memory:
            raise ConfigError(f"this server keeps at most {self._rules.max_memory} bytes, key {key!r} has {nbytes}")

    def add(self, part: StoredPart) -> None:
        """Keep a key from now on."""
        self.parts[part.key] = part
        self.nbytes += part.value.nbytes

    def alone(self, key: StoreKey) -> StoredPart:
        """Find a key by itself; the list that it is together with is put apart.

        Raises:
            ConfigError: there is no such key.
        """
        if key in self._within:
            self._within[key].patience.lose()
            self._part(self._within[key])
        if key not in self.parts:
            raise ConfigError(f"key {key!r} must be initialised before it is used: call init first")
        return self.parts[key]

    def all_alone(self, parts: Iterable[StoredPart]) -> None:
        """Put apart what came together with others while a request for these keys waited."""
        for part in parts:
            self.alone(part.key)

    # Keys and lists --------------------------------------------------------------------------------------------------

    def units(self) -> list[StoredPart]:
        """What has steps of its own: keys that are alone, and lists that are together."""
        single = [part for key, part in self.parts.items() if key not in self._within]
        return single + [unit for joint in self._together.values() for unit in joint.units()]

    def unit(self, topic: Topic) -> StoredPart | None:
        """What has steps, by what requests for it wait for."""
        if topic in self._together:
            return self._together[topic].entry
        return None if isinstance(topic, tuple) else self.parts.get(topic)

    def apart(self) -> None:
        """Let every key be what it would be if nobody had named it together with others."""
        for joint in list(self._together.values()):
            self._part(joint)

    def mark_durable(self) -> None:
        """All that was applied is on the disk."""
        for unit in self.units():
            unit.durable, unit.durable_of = unit.version, dict(unit.last)

    # Lists -----------------------------------------------------------------------------------------------------------

    def listed(self, keys: tuple[StoreKey, ...], sessions: Sequence[WorkerSession]) -> Joint:
        """A list of keys, the same for all workers that name the same ones.

        Args:
            keys: of the list.
            sessions: that may name lists; those that none of them does are forgotten when there are many.

        Raises:
            ConfigError: there is no such key.
            WireError: keys that cannot be together.
        """
        if keys not in self.lists:
            self.lists[keys] = self._checked(keys)
            self._forget_unused(sessions)
        return self.lists[keys]

    def together(self, joint: Joint) -> JoinedParts | None:
        """The one value of all keys of a list, where they have one now or may have it."""
        if joint.entry is None and joint.patience.over():
            for other in {self._within[each.key] for each in joint.members if each.key in self._within}:
                other.patience.lose()
                self._part(other)
            if joint.alike() and not self._waits.topics() & {each.key for each in joint.members}:
                joint.join()
                self._within |= dict.fromkeys((each.key for each in joint.members), joint)
                self._together[joint.topic] = joint
        elif joint.entry is None:
            self.all_alone(joint.members)
        return joint.entry

    def takers(self, unit: StoredPart | Joint, push: Contribution) -> list[tuple[StoredPart, Contribution]]:
        """What takes a push, and what of it: a key, a list's keys as one, or each of them its part."""
        if isinstance(unit, StoredPart):
            return [(unit, push)]
        whole = self.together(unit)
        return [(whole, push)] if whole is not None else list(zip(unit.members, unit.cut(push), strict=True))

    def _checked(self, keys: tuple[StoreKey, ...]) -> Joint:
        members = [self.alone(key) for key in keys]
        self._numbers += 1
        joint = Joint(self._numbers, members)
        if len(set(keys)) < len(keys) or any(each.value.dtype != joint.dtype for each in members):
            raise WireError("keys that are named together are different ones of one type")
        if joint.nbytes > ROOM:
            raise WireError(f"keys that are named together have at most {ROOM} bytes, not {joint.nbytes}")
        return joint

    def _forget_unused(self, sessions: Sequence[WorkerSession]) -> None:
        """Lists that only workers had named that are gone."""
        if len(self.lists) <= MAX_JOINTS * (self._rules.workers + 1):
            return
        used = {joint.topic for session in sessions for joint in session.joints.values()}
        for keys, joint in list(self.lists.items()):
            if joint.topic not in used and keys != next(reversed(self.lists)):
                if joint.entry is not None:
                    self._part(joint)
                del self.lists[keys]

    def _part(self, joint: Joint) -> None:
        assert joint.entry is not None
        for step in joint.entry.pending:
            self._counters.share((joint.topic, step), [each.key for each in joint.members])
        joint.part()
        del self._together[joint.topic]
        for each in joint.members:
            del self._within[each.key]
        self._waits.touched |= {each.key for each in joint.members if each.pending}
        self._waits.again += self._waits.take_all(joint.topic)


class ValueFrames:
    """Values one after the other, as an answer has them: made once for all workers that pull the same."""

    def __init__(self) -> None:
        self._frames: OrderedDict[tuple[StoreKey, ...], tuple[list[int], Tensor]] = OrderedDict()

    def of(self, parts: Sequence[StoredPart]) -> Tensor:
        """The bytes of these keys now."""
        keys, versions = tuple(part.key for part in parts), [part.version for part in parts]
        known = self._frames.get(keys)
        if known is not None and known[0] == versions:
            return known[1]
        bundle = Bundle()
        for part in parts:
            bundle.add(part.key, 0, raw(part.value))
        self._frames[keys] = versions, bundle.data()
        self._frames.move_to_end(keys)
        while sum(frame.numel() for _, frame in self._frames.values()) > FRAMES:
            self._frames.popitem(last=False)
        return self._frames[keys][1]
