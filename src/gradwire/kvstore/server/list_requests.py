"""Requests for many small keys in one message, each a unit: a key, or a list of keys that has a number.

A push is a list of units, each with its step and its bytes; a pull is one of units with their steps. Each key stays
what it was: a push of a key and a step counts once, whatever it came with.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.messages import Outgoing, pack
from gradwire.kvstore.protocol.small_keys import MAX_LISTS, ROOM, Bundle, Unit
from gradwire.kvstore.server.members import WorkerSession
from gradwire.kvstore.server.stored_part import StoredPart
from gradwire.types import align

if TYPE_CHECKING:
    from gradwire.kvstore.server.core import ServerCore

__all__ = ["join", "pulls", "pushes"]

Steps: TypeAlias = "list[tuple[StoredPart, int]]"


def join(core: ServerCore, session: WorkerSession, seq: int, number: int, keys: list[StoreKey]) -> list[Outgoing]:
    """Register a list of keys under a number."""
    if number not in session.lists and len(session.lists) >= MAX_LISTS:
        raise ConfigError(f"a worker names at most {MAX_LISTS} lists of keys")
    session.lists[number] = core.values.listed(tuple(keys), core.members.sessions())
    return core.done(session, seq)


def pushes(
    core: ServerCore,
    session: WorkerSession,
    rest: list[memoryview],
    seq: int,
    chunk: int,
    chunks: int,
    items: list[list[Any]],
    config: int,
    optimizer: int,
) -> list[Outgoing]:
    """Take pushes of several units, each with its step."""
    compression = session.compression(config)
    core.optimizers.check(optimizer)
    units, sizes = found(core, session, [unit for unit, _, _ in items]), [size for _, _, size in items]
    # Sizes before any memory is taken, and all of it before any of it counts.
    for unit, size in zip(units, sizes, strict=True):
        if size not in unit.expected(compression):
            raise WireError(f"a push of {unit.title} has {size} bytes")
    if len({(unit.title, step) for unit, (_, step, _) in zip(units, items, strict=True)}) < len(units):
        raise WireError("a push of many keys has one of them twice for the same step")
    nbytes = sum(map(align, sizes))
    if nbytes > ROOM:
        raise WireError(f"a push of many keys has at most {ROOM} bytes, not {nbytes}")
    data = session.take(seq, chunk, chunks, rest, range(nbytes, nbytes + 1))
    if data is None:
        return []
    steps: Steps = [(unit, step) for unit, (_, step, _) in zip(units, items, strict=True)]
    taken, start = [], 0
    for (unit, step), size in zip(steps, sizes, strict=True):
        push = unit.contribution(compression, data[start : start + size], -1, optimizer)
        core.values.prepare(unit)
        taken += [(part, step, mine) for part, mine in unit.takers(push)]
        start += align(size)
    for part, step, push in taken:
        if core.progress.sync:
            part.is_new(session.rank, step, push)
        else:
            part.check_distance(session.rank, step)
    for part, step, push in taken:
        core.take_push(session, part, step, push)
    return core.when_all(
        session,
        seq,
        partial(parts_of, core, steps),
        core.progress.within_bound,
        lambda: [(session.peer, [pack("dones", seq=seq, durable=durables(core, session, units))])],
    )


def pulls(core: ServerCore, session: WorkerSession, seq: int, items: list[list[Any]]) -> list[Outgoing]:
    """Answer with the values of several units, once all of them are there."""
    units = found(core, session, [unit for unit, _ in items])
    if len(units) > 1 and len({key for unit in units for key in unit.keys}) < sum(unit.count for unit in units):
        raise WireError("a pull of many keys names one of them twice")
    nbytes = sum(align(unit.nbytes) for unit in units)
    if nbytes > ROOM:
        raise WireError(f"a pull of many keys gets at most {ROOM} bytes, not {nbytes}")
    steps: Steps = [(unit, step) for unit, (_, step) in zip(units, items, strict=True)]

    def there(part: StoredPart, step: int) -> bool:
        return core.progress.has_step(part, session.rank, step)

    def answer() -> list[Outgoing]:
        core.counters.pulls += sum(unit.count for unit in units)
        return core.pieces(session, seq, "values", values(core, units), durable=durables(core, session, units))

    return core.when_all(session, seq, partial(parts_of, core, steps), there, answer)


def found(core: ServerCore, session: WorkerSession, named: Sequence[Unit]) -> list[StoredPart]:
    """Find units by the worker's names for them; a list comes with other units only if they have no key in common.

    Raises:
        WireError: a list that was never sent, or a key that two of them have.
        ConfigError: there is no such key.
    """
    units = [session.key_list(each[0]) if isinstance(each, list) else core.values.alone(each) for each in named]
    count = sum(unit.count for unit in units)
    if count > len(units) > 1 and len({key for unit in units for key in unit.keys}) < count:
        raise WireError("a message has a list of keys, and one of these keys again")
    return units


def parts_of(core: ServerCore, steps: Steps) -> Steps:
    """Find the parts that hold the steps of units now: while a request waited, keys may have been
    joined or separated.
    """
    those: Steps = []
    for unit, step in steps:
        core.values.find_again(unit)
        those += [(part, step) for part in unit.units()]
    return those


def values(core: ServerCore, units: Sequence[StoredPart]) -> Tensor:
    """The bytes of units now, one after the other: without a copy for one list, made once for keys that are alone."""
    if all(unit.count == 1 for unit in units):
        return core.frames.of(units)
    bundle = Bundle(kept=False)
    for unit in units:
        bundle.add(0, 0, unit.lend())
    return bundle.data()


def durables(core: ServerCore, session: WorkerSession, units: Sequence[StoredPart]) -> list[int]:
    """The steps up to which a worker need not keep its pushes."""
    return [core.progress.reached(session.rank, unit.units())[1] for unit in units]
