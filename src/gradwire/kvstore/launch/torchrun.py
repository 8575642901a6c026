"""Servers beside rank 0, for torchrun, where every process runs the same script and none of them starts servers.

Rank 0 starts ``GRADWIRE_NUM_SERVERS`` of them (1 if it is not set) and publishes their endpoints in torchrun's own
store. They end when all workers have.

Failure modes:
    If rank 0 is killed or ends by an exception, the servers end with it, as torchrun ends all workers then.
"""

from __future__ import annotations

import atexit
import ipaddress
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from gradwire.errors import ConfigError, GradwireError, GroupError
from gradwire.kvstore.launch.processes import start_server
from gradwire.kvstore.launch.reaper import GRACE
from gradwire.kvstore.launch.remote import Host, end_all, local_agent
from gradwire.kvstore.protocol.environment import (
    INSECURE,
    SERVER_OPTIONS,
    WorkerPlace,
    flag,
    number,
    own_keys,
    ranked,
    split_options,
    start_timeout,
)

__all__ = ["server_arguments", "start_servers_on_rank_0"]

_KEPT: list[Any] = []
"""Stores of torch that this process may be the host of."""


def start_servers_on_rank_0(variables: Mapping[str, str]) -> WorkerPlace:
    """Start the servers on rank 0, and return this worker's place once they listen.

    Args:
        variables: environment variables, as torchrun makes them.

    Raises:
        ConfigError: a variable is missing or has no such value.
        GroupError: the servers do not start, or rank 0 did not come in time.
    """
    rank, world = ranked(variables)
    timeout = timedelta(seconds=start_timeout(variables))
    try:
        store, _, _ = next(rendezvous("env://", rank, world, timeout=timeout))
        _KEPT.append(store)
        attempt = f"{variables.get('TORCHELASTIC_RUN_ID', '')}/{variables.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        mine = PrefixStore(f"gradwire/{attempt}", store)
        if rank == 0:
            mine.set("begun", "")
            _start(variables, world, mine, time.monotonic() + timeout.total_seconds())
        # Rank 0 may come late, and its servers' time begins then. Ending those that hang takes it twice the grace.
        mine.wait(["begun"], timeout)
        mine.wait(["servers"], timeout + timedelta(seconds=3 * GRACE))
        text = mine.get("servers").decode()
    except (RuntimeError, ValueError, TimeoutError) as error:
        if isinstance(error, GradwireError):
            # It says already what is wrong, and is a RuntimeError or a ValueError only by inheritance.
            raise
        where = f"{variables.get('MASTER_ADDR')}:{variables.get('MASTER_PORT')}, MASTER_ADDR and MASTER_PORT"
        raise GroupError(f"rank {rank} could not learn from rank 0 where its servers are ({where}): {error}") from error
    if text.startswith("!"):
        raise GroupError(f"rank 0 could not start the servers: {text[1:]}")
    return WorkerPlace(tuple(text.split(",")), rank, world, own_keys(variables, f"worker-{rank}"))


def _start(variables: Mapping[str, str], world: int, store: Store, deadline: float) -> None:
    processes: list[subprocess.Popen[Any]] = []
    try:
        endpoints = []
        for index in range(number(variables, "GRADWIRE_NUM_SERVERS", 1) if "GRADWIRE_NUM_SERVERS" in variables else 1):
            process, endpoint = start_server(_arguments(variables, world), local_agent(Host("here")), index, deadline)
            processes.append(process)
            endpoints.append(endpoint)
        store.set("servers", ",".join(endpoints))
    except BaseException as error:
        text = f"!{error}" if isinstance(error, GradwireError) else f"!{type(error).__name__}: {error}"
        try:
            # The others wait for this, and would do so in vain. A store that is gone must not hide the error.
            with suppress(RuntimeError):
                store.set("servers", text)
        finally:
            end_all(processes)
        raise
    # Called after the stores' own farewell, as what is registered later is called earlier.
    atexit.register(_end_servers, processes)


def _end_servers(processes: Sequence[subprocess.Popen[Any]]) -> None:
    """Wait until the servers have ended; end them if this script was ended by an exception."""
    if hasattr(sys, "last_value"):
        # They would wait for this worker, which has not finished, and it for them.
        end_all(processes)
    for process in processes:
        process.wait()


def _arguments(variables: Mapping[str, str], world: int) -> list[str]:
    options = split_options(SERVER_OPTIONS, variables.get(SERVER_OPTIONS, ""))
    return [*server_arguments(variables, world, _address(variables, world)), *options]


def server_arguments(variables: Mapping[str, str], workers: int, address: str) -> list[str]:
    """The arguments of ``gradwire server`` that follow from the environment."""
    keys = own_keys(variables, "servers")
    return [
        *("--workers", str(workers), "--bind", f"tcp://{address}:0", "--until-finished"),
        *(("--keys", str(keys)) if keys else ()),
        *(("--insecure",) if flag(variables, INSECURE) else ()),
    ]


def _address(variables: Mapping[str, str], world: int) -> str:
    """The address of the servers: loopback if all workers are on this machine, else that at which rank 0 is reached."""
    if variables.get("LOCAL_WORLD_SIZE") == str(world):
        return "127.0.0.1"
    host = variables.get("GRADWIRE_HOST") or variables["MASTER_ADDR"]
    try:
        address = socket.gethostbyname(host)
    except OSError:
        address = ""
    if not address or ipaddress.ip_address(address).is_loopback:
        raise ConfigError(f"GRADWIRE_HOST must be the address at which others reach rank 0's machine, got {host!r}")
    return address
