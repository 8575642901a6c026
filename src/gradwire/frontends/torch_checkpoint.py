"""Reading of states that ``torch.distributed.checkpoint`` saved."""

from __future__ import annotations

import os
from typing import Any

import torch

from gradwire._short_traceback import short_traceback
from gradwire.errors import ConfigError, nearest

__all__ = ["read_checkpoint"]


@short_traceback
def read_checkpoint(checkpoint: Any, key: str = "gradwire") -> dict[str, Any]:
    """Read the states of all ranks from a checkpoint that ``torch.distributed.checkpoint`` wrote.

    Its own ``load`` fills the tensors that a state has already, and a fresh state has none before its first step.

    Args:
        checkpoint: the path that was saved to, or a ``StorageReader``.
        key: key under which the state was saved: ``dcp.save({"gradwire": state}, checkpoint_id=path)``; "app.gradwire"
            where it is one of several in what is saved as "app".

    Returns:
        The argument of ``load_state_dict``, on CPU.

    Raises:
        ConfigError: nothing was saved under the key.

    Example:
        >>> import tempfile, torch.distributed.checkpoint as dcp
        >>> with tempfile.TemporaryDirectory() as path:
        ...     state = {"step": 3, "ranks": {"0": {"w": torch.ones(2)}}}
        ...     _ = dcp.save({"gradwire": state}, checkpoint_id=path, no_dist=True)
        ...     read_checkpoint(path)
        {'step': 3, 'ranks': {'0': {'w': tensor([1., 1.])}}}
    """
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = FileSystemReader(checkpoint) if isinstance(checkpoint, str | os.PathLike) else checkpoint
    metadata = reader.read_metadata()
    wanted_path, known = tuple(key.split(".")), (metadata.planner_data or {}).items()
    depth = len(wanted_path)
    paths = {flat: path for flat, path in known if tuple(map(str, path[:depth])) == wanted_path}
    if not paths:
        saved = {".".join(map(str, path[:depth])) for _, path in known}
        raise ConfigError(f"key {key!r} is not in the checkpoint: {nearest(key, saved)}")
    wanted: dict[str, Any] = {}
    for flat in paths:
        kind = metadata.state_dict_metadata[flat]
        wanted[flat] = None
        if isinstance(kind, TensorStorageMetadata):
            wanted[flat] = torch.empty(kind.size, dtype=kind.properties.dtype, device="cpu")
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    load(wanted, storage_reader=reader, planner=planner, no_dist=True)
    return nested({path[depth:]: wanted[flat] for flat, path in paths.items()})


def nested(flat: dict[tuple[Any, ...], Any]) -> dict[str, Any]:
    """Nest values by path into dicts in dicts."""
    root: dict[str, Any] = {}
    for path, value in flat.items():
        place = root
        for step in path[:-1]:
            place = place.setdefault(str(step), {})
        place[str(path[-1])] = value
    return root
