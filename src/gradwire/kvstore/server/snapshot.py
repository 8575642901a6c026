"""Snapshots of a server's state: safetensors, written beside the old file, flushed to the disk, and renamed.

What is in it: every value with its version, what the memories keep of the sums, and the optimizer's states. What is not
in it, pushes of steps that were not applied yet and of steps after it, the workers still have and send again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from gradwire.errors import ConfigError, is_int, require
from gradwire.kvstore.protocol.keys import key_list
from gradwire.kvstore.protocol.messages import DTYPES
from gradwire.kvstore.protocol.replica import Replica
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.stored_part import StoredPart
from gradwire.kvstore.system import SYSTEM, Disk

__all__ = ["Snapshots", "load_core", "save_core"]

FORMAT = "gradwire server 1"

FIELDS = {"key", "start", "total", "sparse", "version", "replaced"}
"""Fields of a key in a snapshot, besides those of its workers."""


def save_core(core: ServerCore, path: Path, disk: Disk = SYSTEM.disk) -> None:
    """Write the state of a server; after that the workers may forget the pushes that are in it."""
    core.values.separate_all()
    tensors: dict[str, Tensor] = {}
    told = []
    states = core.optimizers.states()
    for i, entry in enumerate(core.values.parts.values()):
        tensors[f"{i}/value"] = entry.value
        tensors |= {f"{i}/merger/{name}": kept for name, kept in entry.merger.kept.items()}
        for name, value in states.get(entry.key, {}).items():
            if value is not None:
                tensors[f"{i}/optimizer/{name}"] = torch.as_tensor(value, device="cpu").detach()
        for rank, replica in entry.replicas.items():
            tensors |= {f"{i}/replica/{rank}/{name}": tensor for name, tensor in replica.tensors().items()}
        told.append(
            {
                "replicas": [[rank, replica.to_config()] for rank, replica in entry.replicas.items()],
                "key": entry.key,
                "start": entry.start,
                "total": entry.total,
                "sparse": entry.sparse,
                "version": entry.version,
                "replaced": entry.replaced,
                "last": sorted(entry.last.items()),
            }
        )
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    metadata = {
        "format": FORMAT,
        "entries": json.dumps(told),
        "sync": json.dumps(core.progress.sync),
        "setting": json.dumps(core.optimizers.first_after_restart),
        "barriers": json.dumps(core.barriers.passed),
        "sessions": json.dumps([[each.token.hex(), each.barriers] for each in core.members.sessions()]),
    }
    data = save(contiguous, metadata=metadata)
    disk.replace(path, [data], flushed=True)
    core.values.mark_durable()


def load_core(path: Path, rules: Rules, disk: Disk = SYSTEM.disk) -> ServerCore:
    """Make a server that continues from a snapshot.

    Raises:
        ConfigError: the file is no snapshot.
    """
    try:
        data = disk.read(path)
        tensors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
        if metadata.get("format") != FORMAT:
            raise ConfigError(f"it must hold {FORMAT!r}, got {metadata.get('format')!r}")
        told, sync = json.loads(metadata["entries"]), json.loads(metadata["sync"])
        entries = list(_entries(told, tensors))
        keys = key_list([entry.key for entry in entries])
        require(len(set(keys)) == len(keys), "keys", "different", keys)
        require(sync in (None, True, False), "sync", "true, false or null", sync)
        # Snapshots of older versions have none of these.
        first = json.loads(metadata.get("setting", "null"))
        require(first is None or is_int(first, 1), "setting", "an integer >= 1 or null", first)
        passed, sessions = json.loads(metadata.get("barriers", "0")), json.loads(metadata.get("sessions", "[]"))
        require(is_int(passed, 0), "barriers", "an integer >= 0", passed)
        offsets = {bytes.fromhex(token): offset for token, offset in sessions}
        require(all(is_int(each, 0) for each in offsets.values()), "sessions", "with integers >= 0", sessions)
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise ConfigError(f"snapshot {path} cannot be read: {error}") from error
    core = ServerCore(rules, entries)
    core.progress.sync = sync
    core.optimizers.first = first
    core.barriers.restore(passed, range(rules.workers))
    core.members.offsets = offsets
    for i, entry in enumerate(entries):
        saved = below(tensors, f"{i}/optimizer/")
        if saved:
            core.optimizers.saved[entry.key] = saved
    core.values.mark_durable()
    return core


def _entries(rows: list[dict[str, Any]], tensors: dict[str, Tensor]) -> Iterable[StoredPart]:
    for i, each in enumerate(rows):
        last = {int(rank): int(step) for rank, step in each.pop("last")}
        replicas = each.pop("replicas")
        require(each.keys() == FIELDS, "an entry", ", ".join(sorted(FIELDS)), sorted(each))
        entry = StoredPart(value=tensors[f"{i}/value"], last=last, **each)
        _check(entry)
        entry.merger.kept = below(tensors, f"{i}/merger/")
        for rank, config in replicas:
            entry.replicas[int(rank)] = replica = Replica(entry.key, entry.value, rank=max(0, int(rank)))
            replica.restore(below(tensors, f"{i}/replica/{rank}/"), config)
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


class Snapshots:
    """A writer of snapshots: after the first step, and whenever the newest key is so many steps further.

    Args:
        path: path of the file.
        every: steps, >= 1.
        disk: disk of the file.
    """

    def __init__(self, path: Path, every: int, disk: Disk = SYSTEM.disk) -> None:
        self.path, self.every, self._disk = path, every, disk
        self._due = 1

    def after(self, core: ServerCore) -> None:
        """Write a snapshot if it is time to; to be called between messages."""
        newest = max((entry.version for entry in core.values.units()), default=0)
        if newest < self._due:
            return
        self._due = newest + self.every
        try:
            save_core(core, self.path, self._disk)
        except OSError as error:
            # A full disk must not end the training: the old file is there, and the workers keep what is not in it.
            print(f"snapshot {self.path} was not written: {error}", file=sys.stderr, flush=True)
