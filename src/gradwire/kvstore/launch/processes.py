"""Servers and workers of one run, as processes of this machine or of several."""

from __future__ import annotations

import os
import queue
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gradwire.errors import GroupError
from gradwire.kvstore.launch.reaper import GRACE
from gradwire.kvstore.launch.remote import LISTENING, LocalMachine, Machine, end_all
from gradwire.kvstore.protocol.environment import KEYS, SERVERS, START_TIMEOUT, start_timeout

__all__ = ["Group", "start_server"]


def start_server(
    arguments: Sequence[str], machine: Machine | None = None, index: int = 0, deadline: float | None = None
) -> tuple[subprocess.Popen[Any], str]:
    """Start ``gradwire server`` and wait for its endpoint.

    Args:
        arguments: arguments of the command; "{server}" in one is the index.
        machine: machine that runs the server; None: this one.
        index: index of the server, which stands before each line that it prints.
        deadline: reading of ``time.monotonic`` at which it must listen; None: GRADWIRE_START_TIMEOUT from now.

    Raises:
        ConfigError: GRADWIRE_START_TIMEOUT is no positive number.
        GroupError: the server ended instead, or did not print its endpoint in time.
    """
    machine, label, timeout = machine or LocalMachine(), f"server {index}", start_timeout()
    if deadline is None:
        deadline = time.monotonic() + timeout
    command = ["server", *(each.replace("{server}", str(index)) for each in arguments)]
    process, announced = machine.serve([machine.python, "-m", "gradwire", *command], label)
    try:
        line = announced.get(timeout=max(0.0, deadline - time.monotonic()))
        if not line.startswith(LISTENING):
            with suppress(subprocess.TimeoutExpired):
                # Its output ends a moment before it does, and the exit code must not be that of end_all below.
                process.wait(GRACE)
            ended = "closed its output" if process.poll() is None else f"ended with exit code {exit_code(process)}"
            raise GroupError(f"{label} {ended} before it listened" + (f"; its last line was {line!r}" if line else ""))
    except BaseException as error:
        # It may run on or listen later, and nobody would end it then.
        end_all([process])
        if isinstance(error, queue.Empty):
            late = f"{label} did not say within {timeout:g} s ({START_TIMEOUT}) where it listens"
            raise GroupError(late) from None
        raise
    return process, line.removeprefix(LISTENING)


class Group:
    """The processes of one run; leaving the context ends those that still run.

    Args:
        command: command of a worker.
        workers: number of workers.
        servers: number of servers.
        server_arguments: more of them for ``gradwire server``; "{server}" in one is the index of the server.
        keys: folder made by ``gradwire keygen`` for at least so many workers; None: no encryption.
        machines: machines of the workers, one for each; None: all of them run here.
    """

    def __init__(
        self,
        command: Sequence[str],
        workers: int,
        servers: int,
        server_arguments: Sequence[str] = (),
        keys: Path | None = None,
        machines: Sequence[Machine] | None = None,
    ) -> None:
        self.command, self.count, self.keys = list(command), workers, keys
        self.machines = list(machines or [LocalMachine()] * workers)
        self.hosts = list({id(machine): machine for machine in self.machines}.values())
        self.server_arguments = ["--workers", str(workers), *server_arguments]
        if keys is not None:
            self.server_arguments += ["--keys", str(keys / "servers")]
        self.workers: dict[int, subprocess.Popen[Any]] = {}
        self.servers: list[subprocess.Popen[Any]] = []
        self.endpoints: list[str] = []
        try:
            # Servers first, because workers are given their endpoints.
            for index in range(servers):
                process, endpoint = self._serve(index, f"tcp://{self._host(index).address}:0")
                self.servers.append(process)
                self.endpoints.append(endpoint)
            for rank in range(workers):
                self.start_worker(rank)
        except BaseException:
            # What was started already must not outlive a start that failed.
            self.close()
            raise

    def start_worker(self, rank: int) -> subprocess.Popen[Any]:
        """Start a worker, or restart one that has ended."""
        self.workers[rank] = self.machines[rank].start(self.command, self.environment(rank), f"worker {rank}")
        return self.workers[rank]

    def restart_server(self, index: int) -> None:
        """Restart a server at the address it had."""
        self.servers[index], _ = self._serve(index, self.endpoints[index])

    def environment(self, rank: int) -> Mapping[str, str]:
        """Make the environment of a worker. It has one torch thread, because several workers share a machine."""
        told = {
            SERVERS: ",".join(self.endpoints),
            "GRADWIRE_RANK": str(rank),
            "GRADWIRE_WORLD_SIZE": str(self.count),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        return told if self.keys is None else {**told, KEYS: str(self.keys / f"worker-{rank}")}

    def wait(self) -> int:
        """Wait until all workers have ended, or one of them or a server has failed; return the exit code."""
        while True:
            code = self.failure()[1]
            if code or all(process.poll() == 0 for process in self.workers.values()):
                return code
            # Any process may end first, and only one of them could be waited for.
            time.sleep(0.05)

    def failure(self) -> tuple[str, int]:
        """Find the process that failed, and the exit code for it: 128 + n after signal n; 0 if none has failed."""
        for rank, process in self.workers.items():
            if process.poll():
                return f"worker {rank}", exit_code(process)
        for index, process in enumerate(self.servers):
            if process.poll():
                return f"server {index}", exit_code(process)
        return "", 0

    def close(self) -> None:
        """End all processes that still run."""
        end_all([*self.workers.values(), *self.servers])

    def _host(self, index: int) -> Machine:
        return self.hosts[index % len(self.hosts)]

    def _serve(self, index: int, endpoint: str) -> tuple[subprocess.Popen[Any], str]:
        return start_server([*self.server_arguments, "--bind", endpoint], self._host(index), index)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def exit_code(process: subprocess.Popen[Any]) -> int:
    """Convert an exit code to the shell's convention."""
    code = process.returncode or 0
    return code if code >= 0 else 128 - code
