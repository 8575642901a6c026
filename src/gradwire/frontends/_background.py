"""Collectives on a CPU that run on a thread of their own, while the calling thread computes.

Invariants:
    * One thread runs the collectives in the order in which they were issued, which is the same on all ranks.
    * A result that FSDP reads before the backward pass ends is awaited where FSDP waits. All others are awaited at the
      end of the backward pass, before anybody else can read them.
    * Few are under way at one time, because each keeps the gradients of a module alive.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable

from gradwire.auto.step_record import between, moment
from gradwire.errors import GroupError
from gradwire.transport.worker import Worker

__all__ = ["Background", "Started"]

CPU = torch.device("cpu")

_POLL = 0.001
"""Seconds between two looks at an accelerator, which nobody can wait for with a deadline."""

WAITING = 2
"""Modules whose gradients may be under way, or wait for those before them."""


class Started(dist.Work):
    """A collective that was started; a waiting thread gets its error, which torch's own work of a future hides.

    Args:
        worker: thread that runs it, and knows what failed.
        done: future of the tensors that are made.
        device: device of the tensors.
    """

    def __init__(self, worker: Worker, done: Any, device: torch.device = CPU) -> None:
        cast(Any, super()).__init__()
        self._worker, self._done, self._device = worker, done, device

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Wait until it is done; on an accelerator the current stream waits, and with a timeout this thread, too.

        Args:
            timeout: time, or seconds, in which it must be done; None or 0: as long as a collective may take.

        Raises:
            GroupError: the collective failed; or it was not done in time, and goes on. Then it can be waited for again,
                and the group be used, as with torch's own.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if seconds and not self._ends_within(seconds):
            raise GroupError(f"a collective was not done within timeout={seconds:g} s: it goes on; wait for it again")
        self._worker.result(self._done)
        return True

    def _ends_within(self, seconds: float) -> bool:
        """Wait until it is done, for no longer than some seconds; return whether it is."""
        if self._device.type == "cpu":
            ended = threading.Event()
            # Torch's future has no wait with a timeout, so an event is waited for.
            self._done.add_done_callback(lambda _: ended.set())
            return ended.wait(seconds)
        self._worker.result(self._done)
        reached, deadline = torch.cuda.current_stream(self._device).record_event(), time.monotonic() + seconds
        # An event of CUDA has no wait with a timeout, either.
        while not reached.query():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True

    def synchronize(self) -> None:
        """Do the same as ``wait``."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether it is done, or has failed."""
        return bool(self._done.done())

    def is_success(self) -> bool:
        """Return whether it has not failed."""
        return self.exception() is None

    def exception(self) -> Exception | None:
        """Return its error; None as long as it is not done, or if it went well."""
        try:
            # Nothing is waited for: torch asks this at any time.
            if self.is_completed():
                self.result()
        except Exception as error:
            return error
        return None

    def result(self) -> list[Tensor]:
        """Return the tensors of the result."""
        return cast(list[Tensor], self._worker.result(self._done))

    def get_future(self) -> Any:
        """Return a future that is set when it is done."""
        return self._done


class Background:
    """Reductions of a backward pass, each of a module, that are finished when the pass ends.

    Attributes:
        begun: number of all that were started.
        held: seconds for which the thread that starts them has waited for them.
    """

    def __init__(self) -> None:
        self.begun, self.held = 0, 0.0
        self._worker, self._under_way, self._graph = Worker(), deque[Started](), -1

    @staticmethod
    def possible() -> bool:
        """Return whether this thread runs a backward pass, whose end can be waited for."""
        return torch._C._current_graph_task_id() != -1

    def start(self, job: Callable[[], Tensor]) -> None:
        """Run a job after all that were started before; it is done when the backward pass of this thread ends."""
        graph = torch._C._current_graph_task_id()
        if graph != self._graph:
            # A pass that failed never came to its end, so each one says for itself what is to be done there.
            self._graph = graph
            cast(Any, Variable)._execution_engine.queue_callback(self.finish)
        # Each job keeps the gradients of a module alive, so this thread waits until there are few.
        self._wait(WAITING - 1)
        self.begun += 1
        self._under_way.append(Started(self._worker, self._worker.submit(job)))

    def finish(self) -> None:
        """Wait for all jobs.

        Raises:
            GroupError: one of them failed; the others were given up.
        """
        try:
            self._wait(0)
        finally:
            # If one has failed, the others end with it, and nobody may wait for them in the next pass.
            self._under_way.clear()

    def _wait(self, most: int) -> None:
        """Wait until no more than so many are under way."""
        began = moment(CPU)
        while len(self._under_way) > most:
            # The oldest first: one thread runs them in their order, so no later one is done before it.
            self._under_way.popleft().wait()
        self.held += between(began, moment(CPU))

    def close(self) -> None:
        """End the thread, after what is under way."""
        self._worker.close()
