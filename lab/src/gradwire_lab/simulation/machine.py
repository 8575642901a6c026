"""The ``System`` of a simulated process: its clock, random bytes, sockets, threads, waiting and disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from gradwire.kvstore.system import System
from gradwire_lab.simulation.disk import Files, MemoryDisk
from gradwire_lab.simulation.network import Context, Network, Poller
from gradwire_lab.simulation.scheduler import SimulatedProcess, SimulatedThread

__all__ = ["SimulatedMachine"]


class SimulatedMachine(System):
    """The machine of a simulated process.

    Args:
        network: network that it is connected to.
        name: name of the process.
        files: files of the machine.

    Attributes:
        woken: time at which the script has last done something by itself, so what it waits for since is an answer.
        ended: true when the script has ended, so that what it has left does nothing when its memory is freed.
    """

    def __init__(self, network: Network, name: str, files: Files) -> None:
        self.scheduler, self.simulated = network.scheduler, SimulatedProcess(network.scheduler, name)
        self.disk = MemoryDisk(files, self.simulated)
        self.ended, self.woken = False, self.scheduler.now
        self.network = network
        self._ends: list[Callable[[], None]] = []

    def process(self) -> int:
        """Return a number that is another one when the process has ended."""
        return int(self.simulated.alive and not self.ended)

    def at_exit(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function when ``exit`` is called."""
        self._ends.append(lambda: function(*arguments))

    def exit(self) -> None:
        """Do what a process does at the end of its script."""
        while self._ends:
            self._ends.pop()()

    def clock(self) -> float:
        """Return the time in seconds."""
        process = self.simulated
        if self.scheduler.current is not None and self.scheduler.current.process is process:
            self.look()
            while process.hang > self.scheduler.now:
                self.sleep(process.hang - self.scheduler.now)
        return 1000.0 + self.scheduler.now + process.ahead

    def look(self) -> None:
        """Stop where it was to stop at a look at the clock."""
        process = self.simulated
        process.looks -= 1
        if process.pause > self.scheduler.now and process.looks < 0:
            process.stop(process.pause - self.scheduler.now)
            self.scheduler.wait(lambda: True)

    def random(self, count: int) -> bytes:
        """Return random bytes."""
        return self.scheduler.random.randbytes(count)

    def context(self) -> Any:
        """Make a context for sockets."""
        return Context(self.network, self.simulated)

    def poller(self) -> Any:
        """Make a poller for sockets."""
        return Poller(self.scheduler)

    def start(self, function: Callable[..., None], *arguments: Any, name: str) -> SimulatedThread:
        """Start a thread."""
        return self.scheduler.start(self.simulated, lambda: function(*arguments), name)

    def join(self, thread: Any, seconds: float) -> bool:
        """Wait until a thread has ended, unless it is the calling one; return whether it has."""
        if thread is not self.scheduler.current and self.simulated.alive:
            self.scheduler.wait(lambda: thread.over, seconds)
        return bool(thread.over)

    def wait(self, futures: Sequence[Future[int]], seconds: float) -> tuple[set[Future[int]], set[Future[int]]]:
        """Wait until all futures are done or one has failed; return those that are done, and the others."""
        self.scheduler.wait(lambda: all(each.done() for each in futures) or any(map(failed, futures)), seconds)
        done = {each for each in futures if each.done()}
        return done, set(futures) - done

    def pause(self, seconds: float, until: threading.Event | None = None) -> None:
        """Let time pass, at most until an event."""
        self.scheduler.wait(lambda: until is not None and until.is_set(), seconds)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.pause(seconds)
        self.woken = self.scheduler.now


def failed(future: Future[int]) -> bool:
    """Return whether a future has got an exception."""
    return future.done() and not future.cancelled() and future.exception() is not None
