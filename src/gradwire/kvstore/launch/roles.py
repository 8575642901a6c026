"""Starts by other launchers: MXNet's, where every process runs the same script, and torchrun.

MXNet's trackers give each process ``DMLC_ROLE``. A scheduler or server becomes one in ``create``, which does not return
there; a worker asks the scheduler for its rank and the servers. Under torchrun, rank 0 starts the servers.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from gradwire.errors import ConfigError
from gradwire.kvstore.launch.scheduler import join, schedule
from gradwire.kvstore.launch.torchrun import servers_beside_rank_0
from gradwire.kvstore.protocol.environment import (
    INSECURE,
    KEYS,
    SERVERS,
    WorkerPlace,
    flag,
    number,
    own_keys,
    read_place,
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
    told = os.environ if environment is None else environment
    role = told.get(ROLE, "worker")
    if role not in ROLES:
        raise ConfigError(f"{ROLE} must be one of {', '.join(ROLES)}, got {role!r}")
    if role == "server":
        _become_server(told)
    if role == "scheduler":
        schedule(
            _scheduler(told),
            number(told, "DMLC_NUM_WORKER", 1),
            number(told, "DMLC_NUM_SERVER", 1),
            timeout=start_timeout(told),
            keys=own_keys(told, "servers"),
            insecure=flag(told, INSECURE),
        )
        sys.exit(0)


def find_place() -> WorkerPlace:
    """Find this worker's place: in the environment, or by asking the scheduler that the environment names.

    Raises:
        ConfigError: the environment names neither a place nor a scheduler.
        GroupError: the others did not come in time.
    """
    told = os.environ
    if told.get(SERVERS):
        return read_place()
    if ROLE in told and "DMLC_PS_ROOT_URI" in told:
        return _joined(told)
    if "MASTER_ADDR" in told and "RANK" in told:
        return servers_beside_rank_0(told)
    return read_place()


def _joined(told: Mapping[str, str]) -> WorkerPlace:
    wanted = next((number(told, name) for name in RANKS if name in told), -1)
    keys = own_keys(told, f"worker-{max(wanted, 0)}")
    if wanted < 0 and keys is not None and not (Path(told[KEYS]) / "worker-0").is_dir():
        # A key is that of one rank.
        wanted = next((int(file.stem[7:]) for file in keys.glob("worker-*.key_secret")), -1)
    scheduler = _scheduler(told)
    # The scheduler and the servers check the same: if they refuse, workers need not wait for them.
    check_exposure(scheduler, keys is not None, flag(told, INSECURE))
    rank, servers = join(scheduler, wanted, keys, start_timeout(told))
    return WorkerPlace(servers, rank, number(told, "DMLC_NUM_WORKER", 1), own_keys(told, f"worker-{rank}"))


def _scheduler(told: Mapping[str, str]) -> str:
    """The scheduler's endpoint, as an IP address, because a socket cannot listen at a host name."""
    root, port = told.get("DMLC_PS_ROOT_URI", ""), number(told, "DMLC_PS_ROOT_PORT", 1)
    try:
        return f"tcp://{socket.gethostbyname(root)}:{port}" if root else ""
    except OSError:
        raise ConfigError(f"DMLC_PS_ROOT_URI must be the address of the scheduler, got {root!r}") from None


def _become_server(told: Mapping[str, str]) -> NoReturn:
    """Become ``gradwire server`` in this process, so that whoever started the process can end the server."""
    scheduler, keys = _scheduler(told), own_keys(told, "servers")
    command = [
        sys.executable,
        "-m",
        "gradwire_command",
        "server",
        "--workers",
        str(number(told, "DMLC_NUM_WORKER", 1)),
        "--bind",
        f"tcp://{_own_address(told, scheduler)}:0",
        "--scheduler",
        scheduler,
        "--until-finished",
        *(("--keys", str(keys)) if keys else ()),
        *(("--insecure",) if flag(told, INSECURE) else ()),
        *shlex.split(told.get("GRADWIRE_SERVER_OPTIONS", "")),
    ]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)


def _own_address(told: Mapping[str, str], scheduler: str) -> str:
    """The address at which other machines reach this one: the given one, or that from which it
    speaks to the scheduler.
    """
    host = told.get("DMLC_NODE_HOST")
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
