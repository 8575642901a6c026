"""Environment variables of the launcher: the place of this process, and the servers' endpoints.

Ours, torchrun's, MXNet's and Slurm's variables are read, in this order.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gradwire.errors import ConfigError, require
from gradwire.kvstore.protocol.keys import BIGARRAY_BOUND

__all__ = [
    "INSECURE",
    "KEYS",
    "SERVERS",
    "SERVER_OPTIONS",
    "START_TIMEOUT",
    "WorkerPlace",
    "bigarray_bound",
    "flag",
    "number",
    "own_keys",
    "ranked",
    "read_place",
    "server_timeout",
    "split_options",
    "start_timeout",
]

SERVERS = "GRADWIRE_SERVERS"
KEYS = "GRADWIRE_KEYS"
INSECURE = "GRADWIRE_INSECURE"
SERVER_OPTIONS = "GRADWIRE_SERVER_OPTIONS"
START_TIMEOUT = "GRADWIRE_START_TIMEOUT"
SERVER_TIMEOUT = "GRADWIRE_SERVER_TIMEOUT"

RANKS = (
    ("GRADWIRE_RANK", "GRADWIRE_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("DMLC_RANK", "DMLC_NUM_WORKER"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""Rank and number of workers: both of one row."""


@dataclass(frozen=True)
class WorkerPlace:
    """A worker's place in the group.

    Args:
        servers: endpoints, in their order.
        rank: rank of this worker.
        world: number of workers.
        keys: folder with this worker's key; None: no encryption.
    """

    servers: tuple[str, ...]
    rank: int
    world: int
    keys: Path | None = None


def read_place(environment: Mapping[str, str] | None = None) -> WorkerPlace:
    """Read the worker's place from the environment.

    Args:
        environment: None is the process's own.

    Raises:
        ConfigError: a variable is missing or no number.

    Example:
        >>> read_place({"GRADWIRE_SERVERS": "tcp://127.0.0.1:7000", "RANK": "1", "WORLD_SIZE": "2"}).rank
        1
    """
    variables = os.environ if environment is None else environment
    servers = tuple(part.strip() for part in variables.get(SERVERS, "").split(",") if part.strip())
    if not servers:
        raise ConfigError(
            f"a dist store needs {SERVERS}, the servers' endpoints as tcp://ADDRESS:PORT,...: "
            "start the script with `gradwire launch -n WORKERS -s SERVERS -- python script.py`"
        )
    for server in servers:
        # Other transports of ZeroMQ serve tests and machines of one's own.
        known = server.startswith(("tcp://", "ipc://", "inproc://"))
        require(known, SERVERS, "endpoints as tcp://ADDRESS:PORT,...", server)
    rank, world = ranked(variables)
    return WorkerPlace(servers, rank, world, own_keys(variables, f"worker-{rank}"))


def ranked(variables: Mapping[str, str]) -> tuple[int, int]:
    """Read the rank and the number of workers.

    >>> ranked({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"})
    (3, 4)

    Raises:
        ConfigError: the variables are missing, or do not fit each other.
    """
    for rank_name, world_name in RANKS:
        if rank_name in variables:
            rank, world = number(variables, rank_name), number(variables, world_name)
            if not 0 <= rank < world:
                raise ConfigError(f"{rank_name} must be in [0, {world}), got {rank}")
            return rank, world
    pairs = ", or ".join(f"{rank_name} and {world_name}" for rank_name, world_name in RANKS)
    raise ConfigError(
        f"a dist store must be told its rank and the number of workers in the environment, by {pairs}: start the "
        "script with `gradwire launch -n WORKERS -s SERVERS -- python script.py`"
    )


def own_keys(variables: Mapping[str, str], name: str) -> Path | None:
    """The folder with the keys of this process: the given one, or ``name`` in it if it holds several."""
    if not variables.get(KEYS):
        return None
    folder = Path(variables[KEYS])
    return folder / name if (folder / name).is_dir() else folder


def number(variables: Mapping[str, str], name: str, least: int = 0) -> int:
    """Read a variable that is an integer.

    Raises:
        ConfigError: the variable is missing, or something else.
    """
    try:
        value = int(variables[name])
    except KeyError:
        raise ConfigError(f"{name} is missing in the environment") from None
    except ValueError:
        raise ConfigError(f"{name} must be an integer, got {variables[name]!r}") from None
    if value < least:
        raise ConfigError(f"{name} must be an integer >= {least}, got {value}")
    return value


def flag(variables: Mapping[str, str], name: str) -> bool:
    """Read a variable that is 1 for true, or 0, empty or unset for false.

    Raises:
        ConfigError: the variable has another value.
    """
    if variables.get(name, "") not in ("", "0", "1"):
        raise ConfigError(f"{name} must be 0 or 1, got {variables[name]!r}")
    return variables.get(name) == "1"


def bigarray_bound() -> int:
    """The number of elements from which on a key is cut: MXNET_KVSTORE_BIGARRAY_BOUND, or MXNet's default.

    Raises:
        ConfigError: the variable is no integer >= 1.
    """
    name = "MXNET_KVSTORE_BIGARRAY_BOUND"
    return number(os.environ, name, 1) if name in os.environ else BIGARRAY_BOUND


def split_options(name: str, text: str) -> list[str]:
    """Split options into words as a shell does.

    >>> split_options("--ssh", "ssh -i 'my key'")
    ['ssh', '-i', 'my key']

    Args:
        name: name of the variable or option that has them.
        text: its value.

    Raises:
        ConfigError: a quote that is not closed, or nothing behind a backslash.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{name} must be words as a shell reads them, got {text!r}: {error}") from None


def start_timeout(environment: Mapping[str, str] | None = None) -> float:
    """The seconds within which all processes of a run must have come: GRADWIRE_START_TIMEOUT, or 120.

    Raises:
        ConfigError: the variable is no positive number.
    """
    return _seconds((os.environ if environment is None else environment).get(START_TIMEOUT, "120"), START_TIMEOUT)


def server_timeout(environment: Mapping[str, str] | None = None) -> float | None:
    """The seconds for which a server may be away: GRADWIRE_SERVER_TIMEOUT, or None if it is not set.

    Raises:
        ConfigError: the variable is no positive number.
    """
    text = (os.environ if environment is None else environment).get(SERVER_TIMEOUT, "")
    return _seconds(text, SERVER_TIMEOUT) if text else None


def _seconds(text: str, name: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ConfigError(f"{name} must be seconds > 0, got {text!r}")
    return seconds
