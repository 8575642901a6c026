"""Meeting place of a simulation: a store of torch, in a process of its own, that workers ask over connections.

It behaves as torch's ``TCPStore``, with which ``lab/tests/simulation/test_meeting.py`` compares it.

Invariants:
    * Each operation happens at once at the place, and takes time to get there and back.
    * The operations of one process happen in their order. ``set`` waits for no answer.
    * What a process has sent happens also if it is killed or stopped meanwhile.
    * A place that was killed answers nobody: whoever asks it gets an error as soon as the answer would have come.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import Store

from gradwire_lab.simulation.machine import SimulatedMachine
from gradwire_lab.simulation.scheduler import Killed

__all__ = ["SimulatedPlace", "SimulatedStore"]

Values = dict[str, bytes]


class StoreRequest:
    """An operation on its way.

    Args:
        store: connection over which it was sent.
        act: function that returns the answer, and None as long as there is none yet.
    """

    def __init__(self, store: SimulatedStore, act: Callable[[Values], Any]) -> None:
        self.store, self.act = store, act
        self.answer: Any = None

    def arrive(self, answer: Any) -> None:
        """Take the answer, at the process that asked."""
        self.answer = answer
        self.store.machine.scheduler.touch(self.store.machine.simulated)


class SimulatedPlace:
    """The process of a meeting place.

    Args:
        machine: machine of the process.
        seen: function that is called with each key when its value has changed.
    """

    def __init__(self, machine: SimulatedMachine, seen: Callable[[SimulatedPlace, str], None]) -> None:
        self.machine, self.values = machine, Values()
        self.times: dict[str, float] = {}
        self._seen = seen
        self._waiting: list[StoreRequest] = []
        self._held: list[StoreRequest] = []
        machine.simulated.on_death.append(self._end)
        machine.simulated.on_resume.append(self._resume)

    def take(self, request: StoreRequest) -> None:
        """Take an operation that has arrived."""
        if not self.machine.simulated.alive:
            request.store.carry(request.arrive, DistNetworkError("Connection reset by peer"))
        elif self.machine.simulated.stopped:
            self._held.append(request)
        elif (answer := request.act(self.values)) is None:
            self._waiting.append(request)
        else:
            request.store.carry(request.arrive, answer)

    def forget(self, request: StoreRequest) -> bool:
        """Forget an operation that has no answer yet; return whether there was none."""
        found = request in self._waiting
        if found:
            self._waiting.remove(request)
        return found

    def changed(self, key: str) -> None:
        """Note that a value has changed, and answer those who wait for it."""
        self.times.setdefault(key, self.machine.scheduler.now)
        self._seen(self, key)
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self.take(request)

    def _resume(self) -> None:
        held, self._held = self._held, []
        for request in held:
            self.take(request)

    def _end(self) -> None:
        for request in [*self._waiting, *self._held]:
            self.take(request)


class SimulatedStore(Store):
    """The store at a place, as one process sees it over its connection.

    Args:
        place: place of the store.
        machine: machine of the process that asks.

    Attributes:
        stalled: time until which nothing arrives.
        refuses: operations on payloads until one fails; None: none does.
    """

    def __init__(self, place: SimulatedPlace, machine: SimulatedMachine) -> None:
        super().__init__()
        self.place, self.machine = place, machine
        self.stalled = 0.0
        self.refuses: int | None = None
        self._last = 0.0

    def carry(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function when what is sent now arrives, behind all that was sent before."""
        now = self.machine.scheduler.now
        self._last = max(self._last, self.stalled, now + self.machine.network.delay())
        self.machine.scheduler.after(self._last - now, function, *arguments)

    def set(self, key: str, value: Any) -> None:
        """Set a value."""
        self._send(f"sets {key} {len(value)}", lambda values: self._put(values, key, value))

    def get(self, key: str) -> bytes:
        """Return a value, as soon as there is one."""
        found: bytes = self._ask(f"gets {key}", lambda values: values.get(key), 300.0)
        return found

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Set a value where the present one is as expected; return the present one."""

        def act(values: Values) -> Any:
            if values.get(key, b"") == expected and (key in values or not expected):
                self._put(values, key, desired)
            return values.get(key, expected)

        found: bytes = self._ask(f"compares {key} {expected[:9]!r}", act)
        return found

    def add(self, key: str, amount: int) -> int:
        """Add to a number; return the sum."""

        def act(values: Values) -> int:
            self._put(values, key, str(int(values.get(key, b"0")) + amount).encode())
            return int(values[key])

        return int(self._ask(f"adds {amount} to {key}", act))

    def check(self, keys: list[str]) -> bool:
        """Return whether there are all values."""
        return bool(self._ask(f"checks {keys}", lambda values: all(key in values for key in keys)))

    def deleteKey(self, key: str) -> bool:  # noqa: N802
        """Delete a value; return whether there was one."""
        return bool(self._ask(f"deletes {key}", lambda values: values.pop(key, None) is not None))

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=300)) -> None:
        """Wait until there are all values."""
        self._ask(
            f"waits for {keys}", lambda values: all(key in values for key in keys) or None, timeout.total_seconds()
        )

    def _put(self, values: Values, key: str, value: bytes) -> bool:
        values[key] = value
        self.place.changed(key)
        return True

    def _send(self, what: str, act: Callable[[Values], Any]) -> StoreRequest:
        process, request = self.machine.simulated, StoreRequest(self, act)
        self.machine.clock()
        if self.refuses is not None and "/payload/" in what:
            self.refuses = self.refuses - 1 if self.refuses else None
            if self.refuses is None:
                raise DistNetworkError("payload refused")
        dies = process.operate(what)
        if not dies or self.machine.scheduler.random.random() < 0.5:
            self.carry(self.place.take, request)
        if dies:
            raise Killed
        return request

    def _ask(self, what: str, act: Callable[[Values], Any], seconds: float | None = None) -> Any:
        """Let an operation happen at the place; return its answer.

        Raises:
            DistNetworkError: the place is gone.
            DistStoreError: there was no answer in time.
        """
        request = self._send(what, act)
        self.machine.scheduler.wait(lambda: request.answer is not None, seconds)
        if request.answer is None:
            cancelled = self._ask("cancels", lambda _: self.place.forget(request))
            if cancelled:
                raise DistStoreError(f"wait timeout after {(seconds or 0.0) * 1000:.0f}ms")
        if isinstance(request.answer, DistNetworkError):
            raise request.answer
        return request.answer
