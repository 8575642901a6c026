"""MXNet's distributed store on this machine: a scheduler, servers and workers, started by its DMLC_* variables."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gradwire_lab.bench.mxnet_environment import DIRECTORY, REQUIREMENTS
from gradwire_lab.bench.peer_process import Process
from gradwire_lab.bench.peer_venv import python_with
from gradwire_lab.bench.storegroup import DEADLINE, ask_all

__all__ = ["MXNetGroup"]

SCRIPT = Path(__file__).with_name("_mxnet_worker.py")


class MXNetGroup:
    """The processes of MXNet's store; use it as a context manager.

    Args:
        workers: number of workers.
        servers: number of servers.
        directory: folder of the virtual environment, made if need be; None: ``.peers/mxnet``.
        threads: given to each process as OMP_NUM_THREADS.

    Raises:
        PeerError: MXNet cannot be installed here.
    """

    def __init__(self, workers: int, servers: int, directory: Path | None = None, threads: int = 1) -> None:
        python = python_with(REQUIREMENTS, directory or DIRECTORY)
        told = {
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(free_port()),
            "DMLC_NODE_HOST": "127.0.0.1",
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "OMP_NUM_THREADS": str(threads),
        }
        roles = ["scheduler", *["server"] * servers]
        # Scheduler and servers serve from the import on.
        self._others = [_start(python, told | {"DMLC_ROLE": role}) for role in roles]
        worker = told | {"DMLC_ROLE": "worker"}
        self.processes = {rank: Process(python, SCRIPT, worker, DEADLINE) for rank in range(workers)}

    def ask(self, request: str, **arguments: object) -> list[Any]:
        """Ask all workers at the same time, and return their answers."""
        return ask_all(self.processes, request, **arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in self.processes.values():
            worker.close()
        for other in self._others:
            other.kill()
            other.wait()


def _start(python: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(python), "-I", "-c", "import mxnet"],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def free_port() -> int:
    """Find a port of loopback on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
