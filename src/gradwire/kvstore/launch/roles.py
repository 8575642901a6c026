"""Starts by other launchers: MXNet's, where every process runs the same script, and torchrun.

MXNet's trackers give each process ``DMLC_ROLE``. A scheduler or server becomes one in ``create``, which does not return
there; a worker asks the scheduler for its rank and the servers. Under torchrun, rank 0 starts the servers.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from gradwire.errors import ConfigError, require
from gradwire.kvstore.launch.scheduler import join, schedule
from gradwire.kvstore.launch.torchrun import server_arguments, start_servers_on_rank_0
from gradwire.kvstore.protocol.environment import (
    INSECURE,
    KEYS,
    SERVER_OPTIONS,
    SERVERS,
    WorkerPlace,
    flag,
    number,
    own_keys,
    read_place,
    split_options,
    start_timeout,
)
from gradwire.kvstore.server.access import check_exposure

__all__ = ["find_place", "take_role"]

ROLE = "DMLC_ROLE"
ROLES = ("worker", "server", "scheduler")
RANKS = ("DMLC_RANK", "DMLC_WORKER_ID")
"""Variables by which a worker may ask for its rank; without one it gets the next that is free."""


def take_role(environment: Mapping[str, str] | None = None) -> None:
    """Run as the scheduler or a server, and exit with it, if the environment says so; return otherwise.

    Raises:
        ConfigError: a variable is missing or has no such value.
        SystemExit: the work of the role is done.
    """
    variables = os.environ if environment is None else environment
    role = variables.get(ROLE, "worker")
    if role not in ROLES:
        raise ConfigError(f"{ROLE} must be one of {', '.join(ROLES)}, got {role!r}")
    if role == "server":
        _become_server(variables)
    if role == "scheduler":
        schedule(
            _scheduler(variables),
            number(variables, "DMLC_NUM_WORKER", 1),
            number(variables, "DMLC_NUM_SERVER", 1),
            timeout=start_timeout(variables),
            keys=own_keys(variables, "servers"),
            insecure=flag(variables, INSECURE),
        )
        sys.exit(0)


def find_place() -> WorkerPlace:
    """Find this worker's place: in the environment, or by asking the scheduler that the environment names.

    Raises:
        ConfigError: the environment names neither a place nor a scheduler.
        GroupError: the others did not come in time.
    """
    variables = os.environ
    if variables.get(SERVERS):
        return read_place()
    if ROLE in variables and "DMLC_PS_ROOT_URI" in variables:
        return _joined(variables)
    if "MASTER_ADDR" in variables and "RANK" in variables:
        return start_servers_on_rank_0(variables)
    return read_place()


def _joined(variables: Mapping[str, str]) -> WorkerPlace:
    wanted = next((number(variables, name) for name in RANKS if name in variables), -1)
    keys = own_keys(variables, f"worker-{max(wanted, 0)}")
    if wanted < 0 and keys is not None and not (Path(variables[KEYS]) / "worker-0").is_dir():
        # A key is that of one rank.
        wanted = next((int(file.stem[7:]) for file in keys.glob("worker-*.key_secret")), -1)
    scheduler = _scheduler(variables)
    # The scheduler and the servers check the same: if they refuse, workers need not wait for them.
    check_exposure(scheduler, keys is not None, flag(variables, INSECURE))
    rank, servers = join(scheduler, wanted, keys, start_timeout(variables))
    return WorkerPlace(servers, rank, number(variables, "DMLC_NUM_WORKER", 1), own_keys(variables, f"worker-{rank}"))


def _scheduler(variables: Mapping[str, str]) -> str:
    """The scheduler's endpoint, as an IP address, because a socket cannot listen at a host name."""
    root, port = variables.get("DMLC_PS_ROOT_URI", ""), number(variables, "DMLC_PS_ROOT_PORT", 1)
    try:
        return f"tcp://{socket.gethostbyname(root)}:{port}" if root else ""
    except OSError:
        raise ConfigError(f"DMLC_PS_ROOT_URI must be the address of the scheduler, got {root!r}") from None


def _become_server(variables: Mapping[str, str]) -> NoReturn:
    """Become ``gradwire server`` in this process, so that whoever started the process can end the server."""
    scheduler, workers = _scheduler(variables), number(variables, "DMLC_NUM_WORKER", 1)
    command = [
        *(sys.executable, "-m", "gradwire", "server", "--scheduler", scheduler),
        *server_arguments(variables, workers, _own_address(variables, scheduler)),
        *_server_options(variables),
    ]
    # The new program does not write what this one has not.
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)


def _server_options(variables: Mapping[str, str]) -> list[str]:
    """The options of this server, with its index for "{server}"."""
    text, index = variables.get(SERVER_OPTIONS, ""), variables.get("DMLC_SERVER_ID")
    # Without its index a server would have the files of another one.
    known = index is not None or "{server}" not in text
    require(known, SERVER_OPTIONS, "without {server} where DMLC_SERVER_ID is not set", text)
    return [each.replace("{server}", index or "") for each in split_options(SERVER_OPTIONS, text)]


def _own_address(variables: Mapping[str, str], scheduler: str) -> str:
    """The address at which other machines reach this one: the given one, or that from which it
    speaks to the scheduler.
    """
    host = variables.get("DMLC_NODE_HOST")
    if host:
        try:
            return socket.gethostbyname(host)
        except OSError:
            raise ConfigError(f"DMLC_NODE_HOST must be the address of this machine, got {host!r}") from None
    parts = urlsplit(scheduler)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Nothing is sent: it only asks for the way.
        probe.connect((str(parts.hostname), int(parts.port or 1)))
        return str(probe.getsockname()[0])
