"""Requests about the run: members, barriers, compressions, optimizers, and the end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.messages import CHUNK, VERSION, Outgoing, pack
from gradwire.kvstore.protocol.optimizer_states import from_bytes
from gradwire.kvstore.protocol.payloads import require_alone
from gradwire.kvstore.protocol.updater import OptimizerConfig
from gradwire.kvstore.server.members import MAX_CONFIGS, State, WorkerSession, workers
from gradwire.kvstore.server.optimizer_settings import SETTINGS

if TYPE_CHECKING:
    from gradwire.kvstore.server.core import ServerCore

__all__ = [
    "barrier",
    "config",
    "finish",
    "hello",
    "keep",
    "leave",
    "optimizer",
    "ping",
    "restore",
    "staleness",
    "states",
    "why",
]


def hello(
    core: ServerCore,
    peer: bytes,
    owner: int | None,
    version: int,
    rank: int,
    world: int,
    server: int,
    servers: int,
    sync: bool,
    session: bytes,
) -> list[Outgoing]:
    """Admit a worker, or say which process has its place."""
    members, progress = core.members, core.progress
    if version != VERSION:
        raise WireError(
            f"this server speaks version {VERSION} of the protocol, not {version}: install the same gradwire on "
            "all machines"
        )
    members.check_place(owner, rank, world)
    if progress.sync not in (None, sync):
        names = ("dist_sync", "dist_async") if progress.sync else ("dist_async", "dist_sync")
        raise ConfigError(f"all workers must create a {names[0]} store, as the first did, got {names[1]}")
    if core.place not in (None, (server, servers)):
        raise ConfigError(
            f"this server continues server {core.place[0]} of {core.place[1]} of its run, and worker {rank} has it as "
            f"server {server} of {servers}: start each server with the --snapshot file that it had"
        )
    holder = members.holder(peer, rank, session, core.now)
    if holder is not None:
        text = f"rank {rank} is taken by a worker that was heard of {core.now - holder.seen:.1f} s ago"
        # A message to the holder shows whether it can still be reached.
        return [(holder.peer, [core.pong()]), (peer, [pack("error", seq=0, kind="taken", text=text)])]
    about = {"sync": sync, "place": [server, servers]}
    found, refused = taken_in(core, WorkerSession(peer, rank, session, core.now), about)
    if refused:
        return [(peer, [pack("error", seq=0, kind=refused, text=core.unkept() if refused == "busy" else given(rank))])]
    progress.sync, core.place = sync, (server, servers)
    members.enter(found, peer, core.now)
    bounded = core.rules.staleness is not None
    told = {"epoch": core.epoch, "run": core.run, "snapshots": core.began, "bounded": bounded}
    return [(peer, [pack("welcome", rank=rank, world=world, **told)])]


def given(rank: int) -> str:
    """Say in words why a process cannot come back."""
    return f"rank {rank} is given to another process, because this one was silent for too long"


def taken_in(core: ServerCore, fresh: WorkerSession, about: dict[str, Any]) -> tuple[WorkerSession, str]:
    """Find the session that a process goes on with, when the file has what nobody would repeat.

    Args:
        core: the server.
        fresh: session of the process if it is a new one.
        about: more of the record of a new session.

    Returns:
        The session, and the kind of error that it has to be told instead; empty: none.
    """
    before = core.members.of(fresh.rank)
    if before is not None and before.token == fresh.token:
        if before.given_up:
            return before, "taken"
        if before.state is State.DEAD:
            core.members.wait_for(before)
        # The rank is not silent: its process waits.
        before.seen = core.now if before.awaited else before.seen
        return before, "" if not before.awaited or core.saved(before) else "busy"
    fresh.barriers, fresh.joined = core.barriers.passed, before is not None
    record = {"op": "session", "rank": fresh.rank, "token": fresh.token, "barriers": fresh.barriers}
    # The process before will repeat nothing, so all that it pushed must be in the file before its rank is given away.
    ready = (before is None or given_up(core, before)) and core.kept()()
    if ready and not core.keep({**record, "joined": fresh.joined, **about})():
        # It may not come again; the process before it may.
        core.take_back()
        ready = False
    if ready:
        core.barriers.forget(fresh.rank)
    elif before is not None:
        # The rank is not silent: a process of it waits.
        before.seen = core.now
    return fresh, "" if ready else "busy"


def given_up(core: ServerCore, session: WorkerSession) -> bool:
    """Cut off a process whose rank another one takes; return whether all that it pushed is saved, and the steps that
    were made without it.
    """
    session.given_up = True
    if session.state in (State.LIVE, State.CUT):
        core.members.cut(session)
    else:
        core.members.wait_for(session)
    # Its next push will not come, so those after it no longer wait for it.
    for unit in () if core.progress.sync else core.values.units():
        if unit.apply_early(session.rank, core.optimizers.updaters):
            session.changes += 1
            core.pending.touch(unit.topic)
    return core.saved(session)


def ping(core: ServerCore, session: WorkerSession) -> list[Outgoing]:
    """Answer a heartbeat."""
    return [(session.peer, [core.pong()])]


def config(core: ServerCore, session: WorkerSession, seq: int, number: int, config: dict[str, Any]) -> list[Outgoing]:
    """Register a compression under a number."""
    try:
        compression = Compression.from_config(config)
    except (TypeError, ValueError, OverflowError) as error:
        # The configuration came over the network, so a field may have any type.
        raise ConfigError(f"a compression is refused: {error}") from None
    require_alone(compression.push)
    session.declare(number, compression)
    # A worker repeats no more compressions, or settings, than are kept.
    core.wanted |= not number % (MAX_CONFIGS // 2)
    return core.done(session, seq)


def optimizer(
    core: ServerCore,
    session: WorkerSession,
    seq: int,
    number: int,
    name: str,
    numbers: dict[str, Any],
) -> list[Outgoing]:
    """Register a setting of the optimizer under a number, and answer with that number."""
    known, fresh = core.optimizers.declare(number, OptimizerConfig(name, numbers), joined=session.joined)
    record = {"op": "setting", "number": known, "name": name, "numbers": numbers}
    kept = core.keep(record) if fresh else core.kept()
    core.wanted |= fresh and not known % (SETTINGS // 2)
    return core.when_kept(session, seq, kept, lambda: core.done(session, seq, known))


def staleness(core: ServerCore, session: WorkerSession, seq: int, steps: int) -> list[Outgoing]:
    """Set how many steps a worker may be ahead of the slowest."""
    progress = core.progress
    if progress.sync:
        raise ConfigError("a bound on staleness is for dist_async: in dist_sync nobody is ahead")
    if progress.staleness not in (None, steps):
        raise ConfigError(
            f"staleness must be the same on all workers and servers: it is {progress.staleness} here, worker "
            f"{session.rank} asks for {steps}"
        )
    fresh, progress.staleness = progress.staleness is None, steps
    kept = core.keep({"op": "staleness", "steps": steps}) if fresh else core.kept()
    return core.when_kept(session, seq, kept, lambda: core.done(session, seq))


def barrier(core: ServerCore, session: WorkerSession, seq: int, number: int) -> list[Outgoing]:
    """Let a worker continue when all have come."""
    number += session.barriers
    arrived = core.barriers.arrive(session.rank, number)

    def ready() -> bool:
        return number <= core.barriers.passed or core.members.live <= arrived

    def answer() -> list[Outgoing]:
        fresh = number > core.barriers.passed
        core.barriers.pass_to(number)
        kept = core.keep({"op": "barrier", "passed": number}) if fresh else core.kept()
        return core.when_kept(session, seq, kept, lambda: core.done(session, seq))

    topic = ("barrier", number)
    core.pending.touch(topic)
    return core.when(
        topic, session, seq, lambda: f"barrier {number} waits for {workers(core.members.live - arrived)}", ready, answer
    )


def why(core: ServerCore, session: WorkerSession, seq: int, of: int) -> list[Outgoing]:
    """Say what another request of this worker waits for, because its deadline has passed."""
    text = core.pending.reason(session.peer, of)
    return core.value(session, seq, torch.frombuffer(bytearray(f" {text}".encode()), dtype=torch.uint8))


def states(core: ServerCore, session: WorkerSession, seq: int) -> list[Outgoing]:
    """Answer with the optimizer's states."""
    data = torch.frombuffer(bytearray(core.optimizers.to_bytes()), dtype=torch.uint8)
    return core.value(session, seq, data)


def restore(
    core: ServerCore, session: WorkerSession, rest: list[memoryview], seq: int, chunk: int, chunks: int
) -> list[Outgoing]:
    """Restore the optimizer's states."""
    core.optimizers.require_any()
    # The optimizers keep two or three tensors of a value's size, and some numbers.
    most = 4 * core.values.nbytes + 1024 * len(core.values.parts) + CHUNK
    data = session.take(seq, chunk, chunks, rest, range(most + 1))
    if data is None:
        return []
    core.optimizers.load(from_bytes(data.numpy().tobytes())[0])
    core.wanted, saved = True, partial(core.saved_since, core.snapshots)
    return core.when_kept(session, seq, saved, lambda: core.done(session, seq))


def keep(core: ServerCore, session: WorkerSession, seq: int) -> list[Outgoing]:
    """Answer when all that this worker has pushed is in the file: it will not repeat it."""
    session.leaving = True
    return core.when_kept(session, seq, lambda: core.saved(session), lambda: core.done(session, seq))


def finish(core: ServerCore, session: WorkerSession, seq: int) -> list[Outgoing]:
    """Make steps without this worker, when all that it has pushed is in the file."""
    session.leaving = True

    def answer() -> list[Outgoing]:
        core.members.move(session, "finish")
        return core.when_kept(session, seq, core.note(session), lambda: core.done(session, seq))

    return core.when_kept(session, seq, lambda: core.saved(session), answer)


def leave(core: ServerCore, session: WorkerSession) -> list[Outgoing]:
    """Let a worker go that has finished."""
    core.members.leave(session)
    if session.state is State.LEFT:
        core.note(session)
    return []
