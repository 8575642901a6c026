"""Servers and workers as threads of the test: quick where no process has to die."""

import contextlib
import threading

from gradwire.kvstore.protocol.environment import WorkerPlace
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.server import Server
from gradwire.kvstore.worker.store import DistStore


@contextlib.contextmanager
def stores(workers, servers=1, name="dist_sync", rules=None, **options):
    """A store for each worker; they and their servers end with the block."""
    stop, running, opened = threading.Event(), [], []
    try:
        for _ in range(servers):
            server = Server(ServerCore(Rules(workers=workers, **(rules or {}))))
            thread = threading.Thread(target=server.run, args=(stop.is_set,))
            thread.start()
            running.append((server, thread))
        endpoints = tuple(server.endpoint for server, _ in running)
        # One after the other: what was opened is closed where the next one is refused.
        opened.extend(DistStore(name, WorkerPlace(endpoints, rank, workers), **options) for rank in range(workers))
        yield opened
    finally:
        for store in opened:
            store.close()
        stop.set()
        for server, thread in running:
            thread.join(10)
            server.close()
