"""A server's state in its file: the snapshot, and the records after it.

A snapshot contains every value with its version, the tensors that memories keep of the sums, the optimizer's settings
and states, the barriers, the sessions, and the pushes of workers that will not repeat them. A record after it contains
one change: a key's first value, a setting, a session or its state, a barrier, the bound on staleness.

Invariants:
    The workers still have the pushes of later steps, and those that wait for others, and send them again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import ConfigError, is_int, require
from gradwire.kvstore.protocol.buffers import as_bytes
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.keys import key_list
from gradwire.kvstore.protocol.messages import DTYPES
from gradwire.kvstore.protocol.replica import Replica
from gradwire.kvstore.protocol.updater import OptimizerConfig
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.journal import Journal
from gradwire.kvstore.server.members import State, WorkerSession
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.stored_part import AHEAD, Contribution, StoredPart
from gradwire.kvstore.system import SYSTEM, System

__all__ = ["Snapshots", "open_core"]

FIELDS = {"key", "start", "total", "sparse", "version", "replaced"}
"""Fields of a key in a snapshot, besides those of its workers."""


def open_core(path: Path, rules: Rules, system: System = SYSTEM, *, flushed: bool = False) -> ServerCore:
    """Make a server that keeps its state in a file, and continues from it if it is there.

    Args:
        path: file.
        rules: settings of its behaviour.
        system: machine that the server runs on.
        flushed: true: what is acknowledged survives a power cut; false: it survives the end of the process.

    Raises:
        ConfigError: the file is not a server's, is damaged, or cannot be written.
    """
    journal = Journal(path, system.disk, flushed=flushed)
    core = load_core(journal, rules, system)
    try:
        if not journal.exists:
            save_core(core)
    except OSError as error:
        raise ConfigError(f"snapshot {path} cannot be written: {error}") from error
    core.began = core.snapshots
    return core


def save_core(core: ServerCore) -> None:
    """Write the state of a server to its file; after that the workers may forget the pushes that are in it.

    Raises:
        OSError: the file cannot be written; it is as it was, or the new one.
    """
    assert core.journal is not None
    # A file has single keys only, so that it does not depend on which lists happened to be joined.
    core.values.separate_all()
    # Nobody repeats their pushes, so those that wait for their step must be in the file.
    silent = {session.rank for session in core.members.sessions() if not session.repeats}
    tensors: dict[str, Tensor] = {}
    entries, states = [], core.optimizers.states()
    for i, part in enumerate(core.values.parts.values()):
        tensors[f"{i}/value"] = part.value
        tensors |= {f"{i}/merger/{name}": kept for name, kept in part.merger.kept.items()}
        for name, value in states.get(part.key, {}).items():
            if value is not None:
                tensors[f"{i}/optimizer/{name}"] = torch.as_tensor(value, device="cpu").detach()
        for rank, replica in part.replicas.items():
            tensors |= {f"{i}/replica/{rank}/{name}": tensor for name, tensor in replica.tensors().items()}
        pending: list[list[Any]] = []
        for step, rank, push in [
            (step, rank, push) for step, each in part.pending.items() for rank, push in each.items() if rank in silent
        ]:
            tensors[f"{i}/pending/{len(pending)}/data"] = push.data
            if push.rows is not None:
                tensors[f"{i}/pending/{len(pending)}/rows"] = push.rows
            pending.append([step, rank, push.compression.to_config(), push.optimizer])
        entries.append(
            {name: getattr(part, name) for name in sorted(FIELDS)}
            | {
                "last": [list(each) for each in sorted(part.last.items())],
                "replicas": [[rank, replica.to_config()] for rank, replica in part.replicas.items()],
                "pending": pending,
            }
        )
    header = {
        "op": "snapshot",
        "run": core.run,
        "number": core.snapshots + 1,
        "place": None if core.place is None else list(core.place),
        "sync": core.progress.sync,
        "staleness": core.progress.staleness,
        "entries": entries,
        "settings": [[n, each.config.name, dict(each.config.numbers)] for n, each in core.optimizers.updaters.items()],
        "barriers": core.barriers.passed,
        "sessions": [
            [each.rank, each.token, each.barriers, each.joined, each.state.value] for each in core.members.sessions()
        ],
    }
    header["tensors"] = [
        [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for name, tensor in tensors.items()
    ]
    core.journal.replace(header, [as_bytes(tensor.detach()).numpy().data for tensor in tensors.values()])
    # Only now: workers forget the pushes that the server calls durable.
    core.mark_saved()


def load_core(journal: Journal, rules: Rules, system: System = SYSTEM) -> ServerCore:
    """Make a server that continues from its file, or begins one if there is none.

    Raises:
        ConfigError: the file is not a server's, or is damaged.
    """
    try:
        records = journal.read()
        if not records:
            return ServerCore(rules, journal=journal, system=system)
        (header, data), *changes = records
        require(header.get("op") == "snapshot", "the first record", "a snapshot", header.get("op"))
        core = _restored(header, _tensors(header["tensors"], data), rules, journal, system)
        for change, more in changes:
            CHANGES[change["op"]](core, {**change, "data": more})
        core.members.begin_anew()
    except (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise ConfigError(f"snapshot {journal.path} cannot be read: {error}") from error
    # What was read is in the file.
    core.mark_saved()
    return core


def _tensors(rows: list[list[Any]], data: memoryview) -> dict[str, Tensor]:
    """Read tensors that lie one after the other, each into memory of its own."""
    found, at = {}, 0
    for name, dtype, shape in rows:
        found[name] = torch.empty(shape, dtype=DTYPES[dtype], device="cpu")
        end = at + found[name].nbytes
        as_bytes(found[name]).numpy().data[:] = data[at:end]
        at = end
    require(at == len(data), "data", f"{at} bytes", len(data))
    return found


def _restored(
    header: dict[str, Any], tensors: dict[str, Tensor], rules: Rules, journal: Journal, system: System
) -> ServerCore:
    entries = list(_entries(header["entries"], tensors))
    keys = key_list([entry.key for entry in entries]) if entries else []
    require(len(set(keys)) == len(keys), "keys", "different", keys)
    core = ServerCore(rules, entries, journal, system)
    core.run = header["run"]
    require(isinstance(core.run, bytes) and len(core.run) == 16, "run", "16 bytes", core.run)
    require(header["sync"] in (None, True, False), "sync", "true, false or null", header["sync"])
    core.progress.sync = header["sync"]
    core.place = _place(header["place"])
    require(is_int(header["number"], 1), "number", "an integer >= 1", header["number"])
    core.snapshots = header["number"] - 1
    if header["staleness"] is not None:
        _set_staleness(core, {"steps": header["staleness"]})
    _pass_barrier(core, {"passed": header["barriers"]})
    for number, name, numbers in header["settings"]:
        _add_setting(core, {"number": number, "name": name, "numbers": numbers})
    states = {entry.key: below(tensors, f"{i}/optimizer/") for i, entry in enumerate(entries)}
    if any(states.values()):
        core.optimizers.load({key: state for key, state in states.items() if state})
    for rank, token, barriers, joined, state in header["sessions"]:
        _add_session(core, {"rank": rank, "token": token, "barriers": barriers, "joined": joined, "state": state})
    return core


def _add_key(core: ServerCore, change: Mapping[str, Any]) -> None:
    data = change["data"]
    value = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    shaped = value.view(DTYPES[change["dtype"]]).view(change["shape"])
    part = StoredPart(change["key"], shaped, change["start"], change["total"], change["sparse"])
    _check(part)
    core.values.add(part)


def _add_setting(core: ServerCore, change: Mapping[str, Any]) -> None:
    require(is_int(change["number"], 1), "setting", "an integer >= 1", change["number"])
    core.optimizers.add(change["number"], OptimizerConfig(change["name"], change["numbers"]))


def _add_session(core: ServerCore, change: Mapping[str, Any]) -> None:
    rank, token, barriers = change["rank"], change["token"], change["barriers"]
    require(is_int(rank, 0) and rank < core.rules.workers, "rank", f"below {core.rules.workers} (--workers)", rank)
    require(isinstance(token, bytes) and is_int(barriers, 0), "session", "a token and a number of barriers", barriers)
    session = WorkerSession(b"", rank, token, 0.0, State(change.get("state", "live")), barriers=barriers)
    session.joined = bool(change["joined"])
    core.members.restore(session)
    if "sync" in change:
        core.progress.sync, core.place = change["sync"], _place(change["place"])


def _set_state(core: ServerCore, change: Mapping[str, Any]) -> None:
    session = core.members.of(change["rank"])
    require(session is not None, "rank", "that of a session", change["rank"])
    assert session is not None
    session.state = State(change["state"])
    core.members.restore(session)


def _pass_barrier(core: ServerCore, change: Mapping[str, Any]) -> None:
    require(is_int(change["passed"], 0), "barriers", "an integer >= 0", change["passed"])
    core.barriers.pass_to(change["passed"])


def _set_staleness(core: ServerCore, change: Mapping[str, Any]) -> None:
    require(is_int(change["steps"], 0), "staleness", "an integer >= 0", change["steps"])
    core.progress.staleness = change["steps"]


CHANGES = {
    "init": _add_key,
    "setting": _add_setting,
    "session": _add_session,
    "state": _set_state,
    "barrier": _pass_barrier,
    "staleness": _set_staleness,
}
"""Functions by the name of a record after the snapshot; each makes its change."""


def _place(place: Any) -> tuple[int, int] | None:
    if place is None:
        return None
    server, servers = place
    require(is_int(server, 0) and is_int(servers, server + 1), "place", "a server's index and their number", place)
    return server, servers


def _entries(rows: list[dict[str, Any]], tensors: dict[str, Tensor]) -> Iterator[StoredPart]:
    for i, each in enumerate(rows):
        last = {int(rank): int(step) for rank, step in each.pop("last")}
        replicas, pending = each.pop("replicas"), each.pop("pending")
        require(each.keys() == FIELDS, "an entry", ", ".join(sorted(FIELDS)), sorted(each))
        entry = StoredPart(value=tensors[f"{i}/value"], last=last, **each)
        _check(entry)
        entry.merger.kept = below(tensors, f"{i}/merger/")
        for rank, config in replicas:
            entry.replicas[int(rank)] = replica = Replica(entry.key, entry.value, rank=max(0, int(rank)))
            replica.restore(below(tensors, f"{i}/replica/{rank}/"), config)
        for place, (step, rank, config, optimizer) in enumerate(pending):
            data, rows_of = tensors[f"{i}/pending/{place}/data"], tensors.get(f"{i}/pending/{place}/rows")
            push = Contribution(data, Compression.from_config(config), int(optimizer), rows_of)
            entry.pending.setdefault(int(step), {})[int(rank)] = push
        yield entry


def _check(entry: StoredPart) -> None:
    """Refuse a file that no server has written.

    Raises:
        ConfigError: a number or a type that a key cannot have.
    """
    key_list(entry.key)
    for name in ("start", "total", "version"):
        require(
            is_int(getattr(entry, name), 0), f"{name} of key {entry.key!r}", "an integer >= 0", getattr(entry, name)
        )
    fits = entry.start + entry.value.numel() <= entry.total and entry.value.dtype in DTYPES.values()
    require(fits, f"value of key {entry.key!r}", f"within {entry.total} elements, of a known type", entry.value.shape)
    for name in ("sparse", "replaced"):
        value = getattr(entry, name)
        require(isinstance(value, bool), f"{name} of key {entry.key!r}", "true or false", value)


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


PATIENCE = 30.0
"""Seconds after which it is tried again to write a snapshot, at most; after the first failure 1."""


class Snapshots:
    """A writer of snapshots: after the first step, whenever the newest key is so many steps further, when a request
    waits for one, and when the records after the last one are as long as it.

    Args:
        every: steps, >= 1.
    """

    def __init__(self, every: int) -> None:
        # A worker repeats no more steps than a server takes ahead.
        self.every = min(every, AHEAD // 2)
        self._due = 1
        self._next, self._patience = 0.0, 1.0

    def after(self, core: ServerCore) -> None:
        """Write a snapshot if it is time to; to be called between messages."""
        assert core.journal is not None
        newest = max((entry.version for entry in core.values.units()), default=0)
        if not (newest >= self._due or core.wanted or core.journal.full):
            return
        # A disk that is full is not written to after each message.
        if core.journal.trouble and core.now < self._next:
            return
        said = core.journal.trouble
        try:
            save_core(core)
        except (OSError, MemoryError) as error:
            # A full disk must not end the training: the old file is there, and the workers keep what is not in it.
            core.journal.trouble = core.journal.trouble or f"{core.journal.path} cannot be written: {error!r}"
            if core.journal.trouble != said:
                print(f"snapshot {core.journal.trouble}", file=sys.stderr, flush=True)
            self._next, self._patience = core.now + self._patience, min(2 * self._patience, PATIENCE)
        else:
            self._due, self._patience = newest + self.every, 1.0
