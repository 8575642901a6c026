"""Processes of a store that are told what to do and say how long it took."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire.bench.peers._process import Process
from gradwire.kvstore.launch import Group

__all__ = ["StoreGroup", "ask_all"]

SCRIPT = Path(__file__).with_name("_store_worker.py")

DEADLINE = 300.0
"""Seconds in which a worker must answer, whatever it does."""


class StoreGroup(Group):
    """Servers, and workers that run ``_store_worker.py``; use it as a context manager.

    Args:
        workers: how many.
        servers: how many.
        server_arguments: more of them for ``gradwire server``.
    """

    def __init__(self, workers: int, servers: int, server_arguments: Sequence[str] = ()) -> None:
        self.processes: dict[int, Process] = {}
        super().__init__([sys.executable, str(SCRIPT)], workers, servers, server_arguments)

    def start_worker(self, rank: int) -> subprocess.Popen[Any]:
        worker = Process(Path(sys.executable), SCRIPT, self.environment(rank), DEADLINE)
        self.processes[rank], self.workers[rank] = worker, worker.process
        return worker.process

    def ask(self, request: str, **arguments: object) -> list[Any]:
        """The answers of all workers, which work at the same time."""
        return ask_all(self.processes, request, **arguments)

    def close(self) -> None:
        for worker in self.processes.values():
            worker.close()
        super().close()


def ask_all(processes: Mapping[int, Process], request: str, **arguments: object) -> list[Any]:
    """Tell all of them, then collect the answers by rank.

    Raises:
        PeerError: one of them failed.
    """
    for process in processes.values():
        process.tell(request, **arguments)
    return [processes[rank].answer() for rank in sorted(processes)]
