"""Processes of a store that work on request and report the time they took."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire.kvstore.launch.processes import Group
from gradwire.kvstore.launch.remote import Lines, LocalMachine, Machine, Piped
from gradwire_lab.bench.peer_process import Process
from gradwire_lab.netlab import Netlab

__all__ = ["DEADLINE", "StoreGroup", "ask_all"]

SCRIPT = Path(__file__).with_name("_store_worker.py")

DEADLINE = 300.0
"""Seconds in which a worker must answer, whatever it does."""


class StoreGroup(Group):
    """Servers, and workers that run ``_store_worker.py``; use it as a context manager.

    Args:
        workers: number of workers.
        servers: number of servers.
        server_arguments: more of them for ``gradwire server``.
        lab: lab whose links join them: the servers are on its first machines, each worker on one of the next; None: all
            are here, on loopback.
    """

    def __init__(
        self, workers: int, servers: int, server_arguments: Sequence[str] = (), lab: Netlab | None = None
    ) -> None:
        self.processes: dict[int, Process] = {}
        self.lab, self._first = lab, servers
        super().__init__([sys.executable, str(SCRIPT)], workers, servers, server_arguments)

    def start_worker(self, rank: int) -> subprocess.Popen[Any]:
        before = [] if self.lab is None else inside(self.lab, self._first + rank)
        worker = Process(Path(sys.executable), SCRIPT, self.environment(rank), DEADLINE, before)
        self.processes[rank], self.workers[rank] = worker, worker.process
        return worker.process

    def ask(self, request: str, **arguments: object) -> list[Any]:
        """Ask all workers at the same time, and return their answers."""
        return ask_all(self.processes, request, **arguments)

    def _host(self, index: int) -> Machine:
        return LocalMachine() if self.lab is None else LabMachine(self.lab, index)

    def close(self) -> None:
        for worker in self.processes.values():
            worker.close()
        super().close()


class LabMachine(LocalMachine):
    """One machine of a lab.

    Args:
        lab: lab that the machine belongs to.
        rank: rank of the machine in the lab.
    """

    def __init__(self, lab: Netlab, rank: int) -> None:
        self._lab, self._rank = lab, rank

    @property
    def address(self) -> str:
        return self._lab.names.address(self._rank)

    def serve(self, command: Sequence[str], label: str) -> tuple[Piped, Lines]:
        return super().serve([*inside(self._lab, self._rank), *command], label)


def inside(lab: Netlab, rank: int) -> list[str]:
    """Prefix a command so that it runs on a machine of a lab."""
    return ["ip", "netns", "exec", lab.names.worker(rank)]


def ask_all(processes: Mapping[int, Process], request: str, **arguments: object) -> list[Any]:
    """Send a request to all workers, then collect the answers by rank.

    Raises:
        PeerError: one of them failed.
    """
    for process in processes.values():
        process.tell(request, **arguments)
    return [processes[rank].answer() for rank in sorted(processes)]
