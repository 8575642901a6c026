"""Requests for many small keys: named one by one in a message, or together by the number of their list.

Each key stays what it was: a push of a key and a step counts once, whoever it came with.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.messages import Outgoing, pack
from gradwire.kvstore.protocol.payloads import received, sizes
from gradwire.kvstore.protocol.small_keys import MAX_JOINTS, ROOM
from gradwire.kvstore.server.joint import Joint
from gradwire.kvstore.server.parts import Contribution, StoredPart, raw
from gradwire.kvstore.server.session import WorkerSession
from gradwire.types import align

if TYPE_CHECKING:
    from gradwire.kvstore.server.core import ServerCore

__all__ = ["join", "pull_joint", "pulls", "push_joint", "pushes"]

Steps = list[tuple[StoredPart, int]]


def pushes(
    core: ServerCore, session: WorkerSession, rest: list[memoryview], seq: int, chunk: int, chunks: int,
    items: list[list[Any]], config: int, optimizer: int,
) -> list[Outgoing]:  # fmt: skip
    """Take pushes of small keys, each with its step."""
    compression = session.compression(config)
    core.optimizers.check(optimizer)
    # Sizes before any memory is taken, and all of it before any of it counts.
    for key, _, size in items:
        if size not in core.values.alone(key).expected(compression):
            raise WireError(f"a push of key {key!r} has {size} bytes")
    nbytes = sum(align(size) for _, _, size in items)
    if nbytes > ROOM:
        raise WireError(f"a push of many keys has at most {ROOM} bytes, not {nbytes}")
    data = session.take(seq, chunk, chunks, rest, range(nbytes, nbytes + 1))
    if data is None:
        return []
    taken, start = [], 0
    for key, step, size in items:
        part = core.values.parts[key]
        push = part.contribution(compression, data[start : start + size], -1, optimizer)
        if core.progress.sync:
            part.is_new(session.rank, step, push)
        taken.append((part, step, push))
        start += align(size)
    for part, step, push in taken:
        core.take_push(session, part, step, push)
    steps = [(part, step) for part, step, _ in taken]
    return core.when_all(
        session, seq, partial(each_alone, core, steps), core.progress.within_bound,
        lambda: [(session.peer, [pack("dones", seq=seq, durable=durables(core, session, steps))])],
    )  # fmt: skip


def pulls(core: ServerCore, session: WorkerSession, seq: int, items: list[list[Any]]) -> list[Outgoing]:
    """Give the values of small keys, once all of them are there."""
    if len({key for key, _ in items}) < len(items):
        raise WireError("a pull of many keys names one of them twice")
    steps = [(core.values.alone(key), step) for key, step in items]
    nbytes = sum(align(part.value.nbytes) for part, _ in steps)
    if nbytes > ROOM:
        raise WireError(f"a pull of many keys gets at most {ROOM} bytes, not {nbytes}")

    def answer() -> list[Outgoing]:
        core.counters.pulls += len(steps)
        data = core.frames.of([part for part, _ in steps])
        return core.pieces(session, seq, "values", data, durable=durables(core, session, steps))

    def there(part: StoredPart, step: int) -> bool:
        return core.progress.has_step(part, session.rank, step)

    return core.when_all(session, seq, partial(each_alone, core, steps), there, answer)


def join(core: ServerCore, session: WorkerSession, seq: int, number: int, keys: list[StoreKey]) -> list[Outgoing]:
    """Know a list of keys by a number."""
    if number not in session.joints and len(session.joints) >= MAX_JOINTS:
        raise ConfigError(f"a worker names at most {MAX_JOINTS} lists of keys")
    session.joints[number] = core.values.listed(tuple(keys), core.members.sessions())
    return core.done(session, seq)


def push_joint(
    core: ServerCore, session: WorkerSession, rest: list[memoryview], seq: int, chunk: int, chunks: int, joint: int,
    step: int, config: int, optimizer: int,
) -> list[Outgoing]:  # fmt: skip
    """Take a push of all keys of a list; it counts once for each of them, and all of it is checked before."""
    those = session.joint(joint)
    compression = those.checked(session.compression(config))
    core.optimizers.check(optimizer)
    code = compression.push
    allowed = range(those.nbytes, those.nbytes + 1) if code is None else sizes(code, (those.numel,))
    data = session.take(seq, chunk, chunks, rest, allowed)
    if data is None:
        return []
    push = Contribution(data if code is None else received(code, (those.numel,), data), compression, optimizer)
    whole = core.values.together(those)
    taken = [(whole, push)] if whole is not None else list(zip(those.members, those.cut(push), strict=True))
    for part, mine in taken if core.progress.sync else ():
        part.is_new(session.rank, step, mine)
    for part, mine in taken:
        core.take_push(session, part, step, mine)
    return core.when_all(
        session, seq, partial(of_list, core, those, step), core.progress.within_bound,
        lambda: core.reached(session, seq, those.units()),
    )  # fmt: skip


def pull_joint(core: ServerCore, session: WorkerSession, seq: int, joint: int, step: int) -> list[Outgoing]:
    """Give the values of all keys of a list, side by side."""
    those = session.joint(joint)

    def there(part: StoredPart, step: int) -> bool:
        return core.progress.has_step(part, session.rank, step)

    def answer() -> list[Outgoing]:
        core.counters.pulls += len(those.members)
        data = raw(those.values()) if those.entry is None else those.entry.lend()
        return core.value(session, seq, data, those.units())

    return core.when_all(session, seq, partial(of_list, core, those, step), there, answer)


def each_alone(core: ServerCore, steps: Steps) -> Steps:
    """Keys that were named one by one: while a request waited for one of them, others may have come together."""
    core.values.all_alone(part for part, _ in steps)
    return steps


def of_list(core: ServerCore, joint: Joint, step: int) -> Steps:
    """What has the steps of a list's keys, be they together or apart now."""
    if joint.entry is None:
        # Another list may have brought some of them together.
        core.values.all_alone(joint.members)
    return [(unit, step) for unit in joint.units()]


def durables(core: ServerCore, session: WorkerSession, steps: Steps) -> list[int]:
    """The steps up to which a worker need not keep its pushes."""
    return [core.progress.durable(part, session.rank) for part, _ in steps]
