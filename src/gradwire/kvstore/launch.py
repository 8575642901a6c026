"""Servers and workers as processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gradwire.errors import GroupError
from gradwire.kvstore.environment import KEYS, SERVERS

__all__ = ["Group", "start_server"]

PATIENCE = 30.0
"""Seconds that a server may take to say where it listens."""

GRACE = 5.0
"""Seconds between asking a process to end and ending it."""


def start_server(arguments: Sequence[str], **options: Any) -> tuple[subprocess.Popen[str], str]:
    """Start ``gradwire server`` and wait for its endpoint.

    Args:
        arguments: of the command.
        options: for ``subprocess.Popen``.

    Raises:
        GroupError: it ended instead.
    """
    command = [sys.executable, "-m", "gradwire", "server", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("listening on "):
        process.kill()
        raise GroupError(f"a server ended with exit code {process.wait()} before it listened")
    return process, line.split()[2]


class Group:
    """The processes of one run; leaving it ends those that still run.

    Args:
        command: of a worker.
        workers: how many.
        servers: how many.
        server_arguments: more of them for ``gradwire server``.
        keys: folder made by ``gradwire keygen`` for at least so many workers; None: no encryption.
    """

    def __init__(
        self, command: Sequence[str], workers: int, servers: int, server_arguments: Sequence[str] = (),
        keys: Path | None = None,
    ) -> None:  # fmt: skip
        self.command, self.count, self.keys = list(command), workers, keys
        self.server_arguments = ["--workers", str(workers), *server_arguments]
        if keys is not None:
            self.server_arguments += ["--keys", str(keys / "servers")]
        self.workers: dict[int, subprocess.Popen[Any]] = {}
        self.servers: list[subprocess.Popen[str]] = []
        self.endpoints: list[str] = []
        try:
            for _ in range(servers):
                process, endpoint = start_server(self.server_arguments)
                self.servers.append(process)
                self.endpoints.append(endpoint)
            for rank in range(workers):
                self.start_worker(rank)
        except BaseException:
            self.close()
            raise

    def start_worker(self, rank: int) -> subprocess.Popen[Any]:
        """Start a worker, or start one again that has ended."""
        self.workers[rank] = subprocess.Popen(self.command, env={**os.environ, **self.environment(rank)})
        return self.workers[rank]

    def restart_server(self, index: int) -> None:
        """Start a server again at the address it had."""
        arguments = [*self.server_arguments, "--bind", self.endpoints[index]]
        self.servers[index], _ = start_server(arguments)

    def environment(self, rank: int) -> Mapping[str, str]:
        """What a worker is told. One torch thread: several workers share this machine."""
        told = {
            SERVERS: ",".join(self.endpoints), "GRADWIRE_RANK": str(rank), "GRADWIRE_WORLD_SIZE": str(self.count),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }  # fmt: skip
        return told if self.keys is None else {**told, KEYS: str(self.keys / f"worker-{rank}")}

    def wait(self) -> int:
        """Until all workers have ended, or one of them with an error; the exit code."""
        while True:
            codes = [process.poll() for process in self.workers.values()]
            failed = [code for code in codes if code not in (None, 0)]
            if failed:
                return int(failed[0] or 1)
            if all(code == 0 for code in codes):
                return 0
            time.sleep(0.05)

    def close(self) -> None:
        """End what still runs."""
        processes: list[subprocess.Popen[Any]] = [*self.workers.values(), *self.servers]
        running = [process for process in processes if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for server in self.servers:
            if server.stdout is not None:
                server.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
