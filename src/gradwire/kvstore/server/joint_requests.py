"""Requests for small keys that a worker has named together, by the number of their list.

A list is named once; after it a push or a pull of all of them has a header as short as one key's. Whoever names a key
in another way finds it alone: the others notice nothing but that it takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.messages import Outgoing, pack
from gradwire.kvstore.protocol.payloads import received, sizes
from gradwire.kvstore.protocol.small_keys import MAX_JOINTS, ROOM
from gradwire.kvstore.server.bundles import ServerBundles
from gradwire.kvstore.server.joint import JoinedParts, Joint
from gradwire.kvstore.server.parts import Contribution, StoredPart, raw
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.session import WorkerSession
from gradwire.kvstore.server.waiting import Topic

__all__ = ["ServerJoints"]


class ServerJoints(ServerBundles):
    """Lists of keys, those of them that are together now, and requests for all keys of one."""

    def __init__(self, rules: Rules, entries: Iterable[StoredPart] | None = None) -> None:
        super().__init__(rules, entries)
        self._joints: dict[tuple[StoreKey, ...], Joint] = {}
        self._within: dict[StoreKey, Joint] = {}
        self._together: dict[Topic, Joint] = {}
        self._numbers = 0

    def units(self) -> list[StoredPart]:
        alone = [entry for key, entry in self.entries.items() if key not in self._within]
        return alone + [entry for joint in self._together.values() for entry in joint.units()]

    def apart(self) -> None:
        for joint in list(self._together.values()):
            self._part(joint)

    def _entry(self, key: StoreKey) -> StoredPart:
        if key in self._within:
            self._within[key].patience.lose()
            self._part(self._within[key])
        return super()._entry(key)

    def _unit(self, topic: Topic) -> StoredPart | None:
        return self._together[topic].entry if topic in self._together else super()._unit(topic)

    # Requests ----------------------------------------------------------------------------------------------------

    def _join(
        self, session: WorkerSession, rest: list[memoryview], seq: int, number: int, keys: list[StoreKey]
    ) -> list[Outgoing]:
        if number not in session.joints and len(session.joints) >= MAX_JOINTS:
            raise ConfigError(f"a worker names at most {MAX_JOINTS} lists of keys")
        session.joints[number] = self._listed(tuple(keys))
        return self._done(session, seq)

    def _listed(self, keys: tuple[StoreKey, ...]) -> Joint:
        """The same for all workers that name the same keys."""
        if keys not in self._joints:
            self._joints[keys] = self._checked(keys)
            self._forget_unused()
        return self._joints[keys]

    def _checked(self, keys: tuple[StoreKey, ...]) -> Joint:
        members = [self._entry(key) for key in keys]
        self._numbers += 1
        joint = Joint(self._numbers, members)
        if len(set(keys)) < len(keys) or any(each.value.dtype != joint.dtype for each in members):
            raise WireError("keys that are named together are different ones of one type")
        if joint.nbytes > ROOM:
            raise WireError(f"keys that are named together have at most {ROOM} bytes, not {joint.nbytes}")
        return joint

    def _forget_unused(self) -> None:
        """Lists that only workers had named that are gone."""
        if len(self._joints) <= MAX_JOINTS * (self.rules.workers + 1):
            return
        sessions = [*self._sessions.values(), *self._lost.values()]
        used = {joint.topic for session in sessions for joint in session.joints.values()}
        for keys, joint in list(self._joints.items()):
            if joint.topic not in used and keys != next(reversed(self._joints)):
                if joint.entry is not None:
                    self._part(joint)
                del self._joints[keys]

    def _push_joint(
        self, session: WorkerSession, rest: list[memoryview], seq: int, chunk: int, chunks: int, joint: int, step: int,
        config: int, optimizer: int,
    ) -> list[Outgoing]:  # fmt: skip
        those = self._named(session, joint)
        compression = those.checked(self._compression(session, config))
        self._check_optimizer(optimizer)
        data = session.take(seq, chunk, chunks, rest, allowed(those, compression))
        if data is None:
            return []
        if compression.push is not None:
            data = received(compression.push, (those.numel,), data)
        self._take_joint(session, those, step, Contribution(data, compression, optimizer))
        return self._for_all(
            session, seq, those, step, self._within_bound, partial(self._joint_done, session, seq, those)
        )

    def _take_joint(self, session: WorkerSession, those: Joint, step: int, push: Contribution) -> None:
        """Let a push count once for each key; all of it is checked before."""
        whole = self._try_together(those)
        taken = [(whole, push)] if whole is not None else list(zip(those.members, those.cut(push), strict=True))
        for entry, contribution in taken if self.sync else ():
            entry.is_new(session.rank, step, contribution)
        method = push.compression.push.name if push.compression.push is not None else "none"
        for entry, contribution in taken:
            self._take_push(session, entry, step, contribution, method)

    def _pull_joint(
        self, session: WorkerSession, rest: list[memoryview], seq: int, joint: int, step: int
    ) -> list[Outgoing]:
        those = self._named(session, joint)

        def there(entry: StoredPart, step: int) -> bool:
            return self._has_step(entry, session.rank, step)

        return self._for_all(session, seq, those, step, there, partial(self._joint_value, session, seq, those))

    def _joint_value(self, session: WorkerSession, seq: int, those: Joint) -> list[Outgoing]:
        self.counters.pulls += len(those.members)
        data = raw(those.values()) if those.entry is None else those.entry.lend()
        return self._chunks(session, seq, data, those.units())

    def _joint_done(self, session: WorkerSession, seq: int, those: Joint) -> list[Outgoing]:
        version, durable = self._reached(session.rank, those.units())
        return [(session.peer, [pack("done", seq=seq, version=version, durable=durable)])]

    def _for_all(
        self, session: WorkerSession, seq: int, those: Joint, step: int, holds: Callable[[StoredPart, int], bool],
        answer: Callable[[], list[Outgoing]],
    ) -> list[Outgoing]:  # fmt: skip
        """Answer when something holds for all keys, be they together or apart then."""
        if those.entry is None:
            # Another list may have brought some of them together.
            self._alone(those)
        for entry in those.units():
            ready = partial(holds, entry, step)
            if not ready():
                again = partial(self._for_all, session, seq, those, step, holds, answer)
                return self._when(entry.topic, session, seq, self._missing(entry, session.rank, step), ready, again)
        return answer()

    def _named(self, session: WorkerSession, number: int) -> Joint:
        if number not in session.joints:
            raise WireError(f"a request names list {number} of keys, which was never sent")
        return session.joints[number]

    # Together and apart ------------------------------------------------------------------------------------------

    def _try_together(self, joint: Joint) -> JoinedParts | None:
        """The one entry of all keys, where they have one now or may have it."""
        if joint.entry is None and joint.patience.over():
            for other in {self._within[each.key] for each in joint.members if each.key in self._within}:
                other.patience.lose()
                self._part(other)
            if joint.alike() and not self._waits.topics() & {each.key for each in joint.members}:
                joint.join()
                self._within |= dict.fromkeys((each.key for each in joint.members), joint)
                self._together[joint.topic] = joint
        elif joint.entry is None:
            self._alone(joint)
        return joint.entry

    def _alone(self, joint: Joint) -> None:
        for each in joint.members:
            self._entry(each.key)

    def _part(self, joint: Joint) -> None:
        assert joint.entry is not None
        for step in joint.entry.pending if self.sync else ():
            begun = self.counters.begun.pop((joint.topic, step), self._now)
            for each in joint.members:
                self.counters.begin(each.key, step, begun)
        joint.part()
        del self._together[joint.topic]
        for each in joint.members:
            del self._within[each.key]
        self._touched |= {each.key for each in joint.members if each.pending}
        self._again += self._waits.take_all(joint.topic)


def allowed(joint: Joint, compression: Compression) -> range:
    """How many bytes a push of all keys may have."""
    if compression.push is None:
        return range(joint.nbytes, joint.nbytes + 1)
    return sizes(compression.push, (joint.numel,))
