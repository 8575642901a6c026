"""Requests for one key: its first value, pushes, pulls, and some of its rows."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import torch

from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.messages import DTYPES, Outgoing
from gradwire.kvstore.protocol.replica import is_payload
from gradwire.kvstore.server.members import WorkerSession
from gradwire.kvstore.server.stored_part import StoredPart, expected_nbytes, raw

if TYPE_CHECKING:
    from gradwire.kvstore.server.core import ServerCore

__all__ = ["follow", "init", "pull", "push", "rows"]


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
    elif chunk + 1 < chunks:
        return []
    core.pending.touched.add(key)

    def answer() -> list[Outgoing]:
        # A worker may have asked before rank 0 said what the key is.
        try:
            values.parts[key].check_same(*form)
        except ConfigError as error:
            return [core.error(session.peer, seq, "config", error)]
        return core.reached(session, seq, [values.alone(key)])

    return core.when(
        key, session, seq, lambda: f"key {key!r} waits for worker 0's value", lambda: key in values.parts, answer
    )


def push(
    core: ServerCore,
    session: WorkerSession,
    rest: list[memoryview],
    seq: int,
    chunk: int,
    chunks: int,
    key: StoreKey,
    step: int,
    config: int,
    optimizer: int,
    rows: int,
) -> list[Outgoing]:
    """Take a gradient of one step, dense or of some rows."""
    part, compression = core.values.alone(key), session.compression(config)
    core.optimizers.check(optimizer)
    if rows > len(part.value) if part.value.dim() else rows >= 0:
        raise WireError(f"a push names {rows} rows of key {key!r}")
    sizes = expected_nbytes(part, compression, rows)
    extra = 8 * max(rows, 0)
    data = session.take(seq, chunk, chunks, rest, range(sizes.start + extra, sizes.stop + extra))
    if data is None:
        return []
    core.take_push(session, part, step, part.contribution(compression, data, rows, optimizer))
    return core.when(
        key,
        session,
        seq,
        core.progress.missing(part, session.rank, step),
        partial(core.progress.within_bound, part, step),
        lambda: core.reached(session, seq, [core.values.alone(key)]),
    )


def pull(core: ServerCore, session: WorkerSession, seq: int, key: StoreKey, step: int) -> list[Outgoing]:
    """Answer with a value as it is, when the worker's step is in it."""
    part = core.values.alone(key)

    def answer() -> list[Outgoing]:
        core.counters.pulls += 1
        return core.value(session, seq, part.lend(), [part])

    return core.when_there(session, seq, part, step, answer)


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
        # What was given by a server before a restart, or to another process, says nothing about what is there now.
        known = have if have <= session.given.get(key, -1) else -1
        data, session.given[key] = part.answer(session.rank, known, compressor, shared=bool(core.progress.sync))
        method = compressor.name if compressor is not None and is_payload(data) else "none"
        return core.value(session, seq, data, [part], method)

    return core.when_there(session, seq, part, step, answer)


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
        return core.value(session, seq, raw(part.value[asked]), [part])

    return core.when_there(session, seq, part, step, answer)
