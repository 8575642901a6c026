"""The clock and the random bytes of the machine that a worker runs on.

Whoever needs them gets them from one object, so that a simulation can put its own in its place and run the same code.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

__all__ = ["SYSTEM", "BaseSystem", "Readings"]


class BaseSystem:
    """The machine on which this process runs, as far as all that gradwire does needs one."""

    def clock(self) -> float:
        """Return the time in seconds, from any start."""
        return time.monotonic()

    def random(self, count: int) -> bytes:
        """Return random bytes."""
        return os.urandom(count)

    def pause(self, seconds: float, until: threading.Event | None = None) -> None:
        """Let time pass, at most until an event."""
        if until is None:
            time.sleep(seconds)
        else:
            until.wait(seconds)


SYSTEM = BaseSystem()


class Readings:
    """A clock that stands still while nobody reads it.

    A process that was stopped, or computed for long, has read no message meanwhile: the silence of others in that time
    says nothing about them. So each reading moves this clock by no more than ``step``.

    Args:
        clock: clock of the machine.
        step: seconds, the longest interval between two readings that counts.
    """

    def __init__(self, clock: Callable[[], float], step: float) -> None:
        self._clock, self._step = clock, step
        self._last = self.now = clock()

    def read(self) -> float:
        """Read the clock: return the seconds of reading until now."""
        last, self._last = self._last, self._clock()
        self.now += min(self._last - last, self._step)
        return self.now
