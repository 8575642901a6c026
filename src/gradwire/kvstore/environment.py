"""Who this process is and where the servers are, as the launcher's environment says it.

Ours, torchrun's, and MXNet's variables are read, in this order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gradwire.errors import ConfigError

__all__ = ["Place", "read_place"]

SERVERS = "GRADWIRE_SERVERS"
KEYS = "GRADWIRE_KEYS"


@dataclass(frozen=True)
class Place:
    """A worker's place in the group.

    Args:
        servers: endpoints, in their order.
        rank: of this worker.
        world: how many workers there are.
        keys: folder with this worker's key; None: no encryption.
    """

    servers: tuple[str, ...]
    rank: int
    world: int
    keys: Path | None = None


def read_place(environment: Mapping[str, str] | None = None) -> Place:
    """What the environment says.

    Args:
        environment: None is the process's own.

    Raises:
        ConfigError: a variable is missing or no number.

    Example:
        >>> read_place({"GRADWIRE_SERVERS": "tcp://127.0.0.1:7000", "RANK": "1", "WORLD_SIZE": "2"}).rank
        1
    """
    told = os.environ if environment is None else environment
    servers = tuple(part.strip() for part in told.get(SERVERS, "").split(",") if part.strip())
    if not servers:
        raise ConfigError(
            f"a dist store needs {SERVERS}, the servers' endpoints as tcp://ADDRESS:PORT,...: "
            "start the script with `gradwire launch -n WORKERS -s SERVERS -- python script.py`"
        )
    rank = _number(told, "GRADWIRE_RANK", "RANK", "DMLC_RANK")
    world = _number(told, "GRADWIRE_WORLD_SIZE", "WORLD_SIZE", "DMLC_NUM_WORKER")
    if not 0 <= rank < world:
        raise ConfigError(f"the rank must be in [0, {world}), got {rank}")
    return Place(servers, rank, world, Path(told[KEYS]) if told.get(KEYS) else None)


def _number(told: Mapping[str, str], *names: str) -> int:
    for name in names:
        if name in told:
            try:
                return int(told[name])
            except ValueError:
                raise ConfigError(f"{name} must be an integer, got {told[name]!r}") from None
    raise ConfigError(f"a dist store needs one of {', '.join(names)} in the environment")
