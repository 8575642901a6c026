"""Optimizer states in safetensors files, in which nothing can be executed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from gradwire._files import replace_file
from gradwire.errors import ConfigError, is_int, require
from gradwire.kvstore.protocol.keys import StoreKey, key_list
from gradwire.kvstore.protocol.updater import OptimizerConfig

__all__ = ["by_server", "from_bytes", "load_states", "of_server", "save_states", "to_bytes"]

FORMAT = "gradwire optimizer states 1"


def save_states(
    path: str | Path, states: Mapping[StoreKey, Mapping[str, Any]], config: OptimizerConfig | None = None
) -> None:
    """Write states by key, and the optimizer's name and numbers if given.

    Args:
        path: file to write. It is replaced when everything is on the disk, and stays as it is if writing fails.
        states: result of ``Updater.state_dict``.
        config: name and numbers of the optimizer; None: they are not written.
    """
    data = to_bytes(states, config)
    replace_file(Path(path), lambda temporary: Path(temporary).write_bytes(data))


def load_states(path: str | Path) -> tuple[dict[StoreKey, dict[str, Any]], OptimizerConfig | None]:
    """Read a file of ``save_states``.

    Raises:
        ConfigError: no such file, or another kind of file.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read as optimizer states: {error}") from error
    return from_bytes(data, str(path))


def to_bytes(states: Mapping[StoreKey, Mapping[str, Any]], config: OptimizerConfig | None = None) -> bytes:
    """Encode states as the bytes of a file of ``save_states``."""
    tensors: dict[str, Tensor] = {}
    for i, state in enumerate(states.values()):
        for name, value in state.items():
            if value is not None:
                tensors[f"{i}/{name}"] = torch.as_tensor(value, device="cpu").detach().contiguous()
    told = {"format": FORMAT, "keys": json.dumps(list(states))}
    if config is not None:
        told["optimizer"] = json.dumps({"name": config.name, "numbers": dict(config.numbers)})
    return save(tensors, metadata=told)


def from_bytes(data: bytes, name: str = "the file") -> tuple[dict[StoreKey, dict[str, Any]], OptimizerConfig | None]:
    """Decode the bytes of ``to_bytes``.

    Raises:
        ConfigError: other bytes.
    """
    try:
        tensors = load(data)
        told = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
        if told.get("format") != FORMAT:
            raise ConfigError(f"{name} must hold {FORMAT!r}, got {told.get('format')!r}")
        keys = key_list(json.loads(told["keys"]))
        states: dict[StoreKey, dict[str, Any]] = {key: {} for key in keys}
        for label, tensor in tensors.items():
            index, _, field = label.partition("/")
            states[keys[int(index)]][field] = tensor
        config = json.loads(told["optimizer"]) if "optimizer" in told else None
        return states, config and OptimizerConfig(**config)
    except (SafetensorError, ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        if isinstance(error, ConfigError):
            # It is a ValueError too, and says already what is wrong.
            raise
        raise ConfigError(f"{name} cannot be read as optimizer states: {error}") from error


def of_server(server: int, states: Mapping[StoreKey, Mapping[str, Any]]) -> dict[StoreKey, dict[str, Any]]:
    """Name one server's states by the server, because parts of a key have the key's name on each server.

    >>> of_server(1, {"w": {"step": 2}})
    {'[1, "w"]': {'step': 2}}
    """
    return {json.dumps([server, key]): dict(state) for key, state in states.items()}


def by_server(
    states: Mapping[StoreKey, dict[str, Any]], servers: int, name: str = "the file"
) -> list[dict[StoreKey, dict[str, Any]]]:
    """Divide named states among all servers, as the inverse of ``of_server``.

    Raises:
        ConfigError: states of another store, or of a server that there is not.
    """
    split: list[dict[StoreKey, dict[str, Any]]] = [{} for _ in range(servers)]
    for label, state in states.items():
        try:
            server, key = json.loads(str(label))
            (key,) = key_list(key)
        except (ValueError, TypeError, RecursionError):
            raise ConfigError(f"{name} must hold the states of a distributed store, got those of {label!r}") from None
        fits = is_int(server, 0, servers - 1)
        require(fits, "fname", f"written with {servers} servers, as there are now", f"states of server {server}")
        split[server][key] = state
    return split
