"""Requests for keys: their first values, lists of them, pushes, pulls, compressed values, and rows.

A push is a list of units, each with its step and its bytes; a pull is a list of units, each with its step. A unit is a
key, or a list of keys that has a number. Whatever a key is pushed with, a push of a key and a step counts once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.buffers import as_bytes
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.messages import DTYPES, Outgoing
from gradwire.kvstore.protocol.replica import is_payload
from gradwire.kvstore.protocol.small_keys import MAX_BATCH, MAX_LISTS, Unit, offsets, unpacked
from gradwire.kvstore.server.members import WorkerSession
from gradwire.kvstore.server.stored_part import Contribution, StoredPart

if TYPE_CHECKING:
    from gradwire.kvstore.server.core import ServerCore

__all__ = ["follow", "init", "join", "pull", "push", "rows"]


def init(
    core: ServerCore,
    session: WorkerSession,
    rest: list[memoryview],
    seq: int,
    chunk: int,
    chunks: int,
    key: StoreKey,
    shape: list[int],
    dtype: str,
    start: int,
    total: int,
    sparse: bool,
) -> list[Outgoing]:
    """Take a key's first value from rank 0; other workers wait for it."""
    kind, values = DTYPES[dtype], core.values
    if start + math.prod(shape) > total:
        raise WireError(f"key {key!r} has {total} elements, a part of {math.prod(shape)} does not begin at {start}")
    nbytes = math.prod(shape) * kind.itemsize
    if max([nbytes, *shape]) > core.rules.max_bytes:
        raise ConfigError(f"key {key!r} has {nbytes} bytes, this server takes at most {core.rules.max_bytes}")
    part, form = values.parts.get(key), (torch.Size(shape), kind, start, total)
    if part is not None:
        part.check_same(*form)
    else:
        values.check_room(key, nbytes)
    if chunks and session.rank == 0 and part is None:
        data = session.take(seq, chunk, chunks, rest, range(nbytes, nbytes + 1))
        if data is None:
            return []
        values.add(StoredPart(key, data.view(kind).view(shape), start, total, sparse))
        about = {"op": "init", "key": key, "shape": shape, "dtype": dtype, "start": start, "total": total}
        core.keep({**about, "sparse": sparse}, data.numpy().data)
    elif chunk + 1 < chunks:
        return []
    # Others have asked before, and wait for this value.
    core.pending.touch(key)

    def answer() -> list[Outgoing]:
        # This worker may have asked before rank 0 sent the value.
        try:
            values.parts[key].check_same(*form)
        except ConfigError as error:
            return [core.error(session.peer, seq, "config", error)]

        def done() -> list[Outgoing]:
            part = values.alone(key)
            return core.done(session, seq, core.progress.version(part, session.rank), [part])

        return core.when_kept(session, seq, core.kept(), done)

    return core.when(
        key, session, seq, lambda: f"key {key!r} waits for worker 0's value", lambda: key in values.parts, answer
    )


def join(core: ServerCore, session: WorkerSession, seq: int, number: int, keys: list[StoreKey]) -> list[Outgoing]:
    """Register a list of keys under a number."""
    if number not in session.lists and len(session.lists) >= MAX_LISTS:
        raise ConfigError(f"a worker names at most {MAX_LISTS} lists of keys")
    session.lists[number] = core.values.listed(tuple(keys), core.members.sessions())
    return core.done(session, seq)


def push(
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
    """Take the gradients of units, each for one step and either dense or of some rows."""
    compression = session.compression(config)
    core.optimizers.check(optimizer)
    units = find_units(core, session, [item[0] for item in items])
    # No memory is taken before all sizes were checked, and nothing counts before all bytes were checked.
    for unit, (_, _, size, rows) in zip(units, items, strict=True):
        if size not in unit.expected(compression, rows):
            raise WireError(f"a push of {unit.title} has {size} bytes")
        core.optimizers.check_value(unit, optimizer, alone=not core.progress.sync)
    steps = [(unit, item[1]) for unit, item in zip(units, items, strict=True)]
    if len(units) > 1 and len({(unit.title, step) for unit, step in steps}) < len(units):
        raise WireError("a push of many keys has one of them twice for the same step")
    sizes = [item[2] for item in items]
    data = session.take(seq, chunk, chunks, rest, total_size("a push of many keys has", sizes))
    if data is None:
        return []
    taken: list[tuple[StoredPart, int, Contribution]] = []
    for unit, piece, (_, step, _, rows) in zip(units, unpacked(data, sizes), items, strict=True):
        contribution = unit.contribution(compression, piece, rows, optimizer)
        core.values.prepare(unit)
        taken += [(part, step, mine) for part, mine in unit.takers(contribution)]
    for part, step, mine in taken:
        if core.progress.sync:
            # All of them are checked before any counts: a request changes everything or nothing.
            part.is_new(session.rank, step, mine)
        else:
            part.check_distance(session.rank, step)
    for part, step, mine in taken:
        core.take_push(session, part, step, mine)
    return core.when_all(session, seq, steps, core.progress.within_bound, lambda: core.done(session, seq, 0, units))


def pull(core: ServerCore, session: WorkerSession, seq: int, items: list[list[Any]]) -> list[Outgoing]:
    """Answer with the values of units as they are, when the worker's steps are in them."""
    units = find_units(core, session, [unit for unit, _ in items])
    if len(units) > 1 and len({key for unit in units for key in unit.keys}) < sum(unit.count for unit in units):
        raise WireError("a pull of many keys names one of them twice")
    total_size("a pull of many keys gets", [unit.nbytes for unit in units])

    def answer() -> list[Outgoing]:
        core.counters.pulls += sum(unit.count for unit in units)
        # One unit is sent without a copy; several are copied once for all workers that pull the same.
        data = units[0].lend() if len(units) == 1 else core.frames.of(units)
        return core.value(session, seq, data, units)

    there = partial(core.progress.has_step, session.rank)
    return core.when_all(
        session, seq, [(unit, step) for unit, (_, step) in zip(units, items, strict=True)], there, answer
    )


def follow(
    core: ServerCore,
    session: WorkerSession,
    seq: int,
    key: StoreKey,
    step: int,
    config: int,
    have: int,
) -> list[Outgoing]:
    """Answer with a compressed value, for a worker that holds the result of an earlier answer."""
    part, compressor = core.values.alone(key), session.compression(config).pull

    def answer() -> list[Outgoing]:
        core.counters.pulls += 1
        # A number from before a restart, or given to another process, says nothing about this server's replica.
        known = have if have <= session.given.get(key, -1) else -1
        data, session.given[key] = part.answer(session.rank, known, compressor, shared=bool(core.progress.sync))
        method = compressor.name if compressor is not None and is_payload(data) else "none"
        return core.value(session, seq, data, [part], method)

    return core.when_all(session, seq, [(part, step)], partial(core.progress.has_step, session.rank), answer)


def rows(
    core: ServerCore,
    session: WorkerSession,
    rest: list[memoryview],
    seq: int,
    chunk: int,
    chunks: int,
    key: StoreKey,
    step: int,
) -> list[Outgoing]:
    """Answer with some rows of a value."""
    part = core.values.alone(key)
    data = session.take(seq, chunk, chunks, rest, range(8 * core.rules.max_keys))
    if data is None:
        return []
    if data.numel() % 8:
        raise WireError("rows are int64")
    asked = data.view(torch.int64)
    count = len(part.value) if part.value.dim() else 0
    if len(asked) > count:
        raise ConfigError(f"key {key!r} has {count} rows, {len(asked)} were asked for")
    if asked.numel() and not (int(asked.min()) >= 0 and int(asked.max()) < count):
        raise ConfigError(f"row_ids of key {key!r} must be in [0, {count})")

    def answer() -> list[Outgoing]:
        core.counters.pulls += 1
        return core.value(session, seq, as_bytes(part.value[asked]), [part])

    return core.when_all(session, seq, [(part, step)], partial(core.progress.has_step, session.rank), answer)


def find_units(core: ServerCore, session: WorkerSession, names: Sequence[Unit]) -> list[StoredPart]:
    """Find units by the worker's names for them.

    Raises:
        WireError: a list that was never declared, or a list together with one of its keys.
        ConfigError: a key that does not exist.
    """
    units = [session.key_list(each[0]) if isinstance(each, list) else core.values.alone(each) for each in names]
    count = sum(unit.count for unit in units)
    if count > len(units) > 1 and len({key for unit in units for key in unit.keys}) < count:
        raise WireError("a message has a list of keys, and one of these keys again")
    return units


def total_size(what: str, sizes: Sequence[int]) -> range:
    """Compute the number of bytes of several units, as a range of one number.

    Raises:
        WireError: several units that are too large for one message.
    """
    nbytes = offsets(sizes)[1]
    if len(sizes) > 1 and nbytes > MAX_BATCH:
        raise WireError(f"{what} at most {MAX_BATCH} bytes, not {nbytes}")
    return range(nbytes, nbytes + 1)
