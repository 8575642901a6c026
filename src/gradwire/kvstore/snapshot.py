"""A server's state on the disk: safetensors, written beside the old one, brought to the disk, and given its name.

What is in it: every value with its version, what the memories keep of the sums, and the optimizer's states. What is not
in it, pushes of steps that were not applied yet and of steps after it, the workers still have and send again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from gradwire.errors import ConfigError
from gradwire.kvstore.core import ServerCore
from gradwire.kvstore.entry import Entry
from gradwire.kvstore.replica import Replica
from gradwire.kvstore.rules import Rules
from gradwire.kvstore.states import replace_file

__all__ = ["Snapshots", "load_core", "save_core"]

FORMAT = "gradwire server 1"


def save_core(core: ServerCore, path: Path) -> None:
    """Write what a server knows; after it the workers may forget what is in it."""
    tensors: dict[str, Tensor] = {}
    told = []
    states = core.optimizer_states()
    for i, entry in enumerate(core.entries.values()):
        tensors[f"{i}/value"] = entry.value
        tensors |= {f"{i}/merger/{name}": kept for name, kept in entry.merger.kept.items()}
        for name, value in states.get(entry.key, {}).items():
            if value is not None:
                tensors[f"{i}/optimizer/{name}"] = torch.as_tensor(value).detach()
        for rank, replica in entry.replicas.items():
            tensors |= {f"{i}/replica/{rank}/{name}": tensor for name, tensor in replica.tensors().items()}
        told.append({
            "replicas": [[rank, replica.to_config()] for rank, replica in entry.replicas.items()],
            "key": entry.key, "start": entry.start, "total": entry.total, "sparse": entry.sparse,
            "version": entry.version, "replaced": entry.replaced, "last": sorted(entry.last.items()),
        })  # fmt: skip
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    metadata = {"format": FORMAT, "entries": json.dumps(told), "sync": json.dumps(core.sync)}
    data = save(contiguous, metadata=metadata)
    replace_file(path, lambda temporary: Path(temporary).write_bytes(data))
    core.mark_durable()


def load_core(path: Path, rules: Rules) -> ServerCore:
    """A server that goes on from a snapshot.

    Raises:
        ConfigError: the file is no snapshot.
    """
    try:
        data = path.read_bytes()
        tensors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
        if metadata.get("format") != FORMAT:
            raise ConfigError(f"snapshot {path} must hold {FORMAT!r}, got {metadata.get('format')!r}")
        told, sync = json.loads(metadata["entries"]), json.loads(metadata["sync"])
        entries = list(_entries(told, tensors))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"snapshot {path} cannot be read: {error}") from error
    core = ServerCore(rules, entries)
    core.sync = sync
    for i, entry in enumerate(entries):
        saved = below(tensors, f"{i}/optimizer/")
        if saved:
            core.saved_states[entry.key] = saved
    core.mark_durable()
    return core


def _entries(told: list[dict[str, Any]], tensors: dict[str, Tensor]) -> Iterable[Entry]:
    for i, each in enumerate(told):
        last = {int(rank): int(step) for rank, step in each.pop("last")}
        replicas = each.pop("replicas")
        entry = Entry(value=tensors[f"{i}/value"], last=last, **each)
        entry.merger.kept = below(tensors, f"{i}/merger/")
        for rank, config in replicas:
            entry.replicas[int(rank)] = replica = Replica(entry.key, entry.value, rank=max(0, int(rank)))
            replica.restore(below(tensors, f"{i}/replica/{rank}/"), config)
        yield entry


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


class Snapshots:
    """Writes one whenever the newest key is so many steps further.

    Args:
        path: of the file.
        every: steps, >= 1.
    """

    def __init__(self, path: Path, every: int) -> None:
        self.path, self.every = path, every
        self._written = 0

    def after(self, core: ServerCore) -> None:
        """Called between messages."""
        newest = max((entry.version for entry in core.entries.values()), default=0)
        if newest >= self._written + self.every:
            save_core(core, self.path)
            self._written = newest
