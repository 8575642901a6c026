"""Description of a meeting, as a worker that takes part is given it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from gradwire._short_traceback import ShortTracebacks
from gradwire._system import SYSTEM, BaseSystem
from gradwire.errors import GroupError, is_float32, is_int, require
from gradwire.optim.local._islands import Island
from gradwire.optim.local.board import Board
from gradwire.transport.worker import Worker

__all__ = ["Island", "Meeting"]

LONGEST = 1e6
"""Seconds that a wait may take at most."""


@dataclass(frozen=True)
class Meeting(ShortTracebacks):
    """A meeting place for workers in rounds; no worker is indispensable, only the place itself is.

    The place is a store of ``torch.distributed``; ``gradwire meeting`` keeps one that outlives all workers. It is not
    encrypted and asks for no password: let it listen where only the workers are, on a private network or a tunnel.

    Args:
        place: "HOST:PORT" or, where several meetings share a place, "HOST:PORT/NAME"; or a store.
        name: name of this worker, different for each; the same when it comes again, and on all ranks of one that has
            several. 1 to 64 characters. Numbers are best: what workers sent is summed in their order.
        workers: number of workers that must have come before the first round begins, >= 1; the same for all. More may
            come later.
        deadline: seconds that a round stays open after its first worker has handed in, > 0. Shorter: a slow worker
            holds up the others less, and is left behind more often.
        timeout: seconds for which a worker that comes waits for the others, > 0; longer than a round takes.
        quorum: number of workers with which a round may close before its deadline, >= 1, as soon as one of them has to
            wait for it: with ``fragments`` of DiLoCo when the result is due, so that nobody waits for a slow worker.
            None: all that are expected are waited for.
        grace: seconds that a worker waits all the same, >= 0, for those that are nearly as fast.

    Raises:
        ConfigError: a value is outside its range.

    Example:
        >>> Meeting("10.0.0.1:7100", "0", workers=3).deadline
        60.0
    """

    place: Any
    name: str
    workers: int = 1
    deadline: float = 60.0
    timeout: float = 3600.0
    quorum: int | None = None
    grace: float = 0.0

    def __post_init__(self) -> None:
        host, port, _ = parts(self.place) if isinstance(self.place, str) else ("", "", "")
        known = isinstance(self.place, Store) or (bool(host) and port.isdecimal() and int(port) < 65536)
        require(known, "Meeting.place", "HOST:PORT, HOST:PORT/NAME, or a store of torch.distributed", self.place)
        named = isinstance(self.name, str) and 1 <= len(self.name) <= 64 and self.name.isprintable()
        require(named and "/" not in self.name, "Meeting.name", "1 to 64 printable characters without '/'", self.name)
        require(is_int(self.workers, 1), "Meeting.workers", "an integer >= 1", self.workers)
        enough = self.quorum is None or is_int(self.quorum, 1)
        require(enough, "Meeting.quorum", "an integer >= 1 or None", self.quorum)
        patient = is_float32(self.grace) and 0 <= self.grace <= LONGEST
        require(patient, "Meeting.grace", f"seconds in [0, {LONGEST:g}]", self.grace)
        for name in ("deadline", "timeout"):
            value = getattr(self, name)
            require(
                is_float32(value) and 0 < value <= LONGEST, f"Meeting.{name}", f"seconds in (0, {LONGEST:g}]", value
            )

    @property
    def on_all_ranks(self) -> dict[str, Any]:
        """The arguments as facts, which must be the same on all ranks of a worker."""
        place = self.place if isinstance(self.place, str) else type(self.place).__name__
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"place": place}

    @property
    def longest_wait(self) -> float:
        """Seconds that the first rank of a worker may wait at the place at once, and the others for it."""
        return min(LONGEST, 2 * max(self.timeout, self.deadline) + 300.0)

    @property
    def system(self) -> BaseSystem:
        """The clock and the random bytes of this worker; a simulation has its own."""
        return SYSTEM

    def thread(self) -> Worker:
        """Make the thread on which fragments are exchanged; a simulation has its own."""
        return Worker()

    def island(self) -> Island:
        """Make the island that this rank is in; a simulation has its own."""
        return Island(None)

    def open(self) -> Board:
        """Open the board of this place.

        Raises:
            GroupError: no store answers at the address.
        """
        if isinstance(self.place, Store):
            return Board(self.place, type(self.place).__name__)
        host, port, name = parts(self.place)
        kind = dist.TCPStore  # type: ignore[attr-defined]
        connect = partial(kind, host, int(port), is_master=False, wait_for_workers=False)
        try:
            # The place must answer sooner than the other workers come.
            return Board(connect(timeout=timedelta(seconds=min(self.timeout, 300.0))), self.place, name)
        except RuntimeError as error:
            raise GroupError(f"no meeting place answers at {self.place}: start `gradwire meeting` there") from error


def parts(place: str) -> tuple[str, str, str]:
    """The host, the port and the name.

    >>> parts("[::1]:7100/gpt")
    ('::1', '7100', 'gpt')
    """
    address, _, name = place.partition("/")
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port, name
