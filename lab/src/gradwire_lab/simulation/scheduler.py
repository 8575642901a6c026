"""Threads of which one runs at a time, simulated processes, and simulated time.

Invariants:
    * A thread runs only while it holds the baton, and gives it back where it waits: so nothing runs at the same time,
      and the order is drawn from the seed.
    * Time passes when no thread can run; then the next event happens. While threads run it passes a little.
    * The threads of a killed process get ``Killed`` where they wait, and whatever it does from then on has no effect.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Killed", "Scheduler", "SimulatedProcess", "SimulatedThread"]

TURN = 20e-6
"""Seconds that pass between two turns of threads, at most."""


class Killed(BaseException):
    """The end of a simulated process, in each of its threads."""


class SimulatedProcess:
    """A simulated process.

    Args:
        scheduler: scheduler of its threads.
        name: name in traces.

    Attributes:
        alive: false once it was killed or has ended.
        stopped: true between SIGSTOP and SIGCONT.
        ahead: seconds by which its clock is ahead.
        fuse: operations (messages, writes) after which it is killed; None: it is not.
        torn: true if it is killed in the middle of its next write to a file.
        pause: time until which it stops at a look at its clock.
        looks: looks at its clock that it takes before.
        hang: time until which the thread that looks at its clock next stands still, while its connections live.
        on_death: called once when it is killed.
        on_stop: called with the seconds when it is stopped.
    """

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler, self.name = scheduler, name
        self.alive, self.stopped, self.torn = True, False, False
        self.ahead = self.pause = self.hang = 0.0
        self.looks = 0
        self.fuse: int | None = None
        self.tasks: list[SimulatedThread] = []
        self.on_death: list[Callable[[], None]] = []
        self.on_resume: list[Callable[[], None]] = []
        self.on_stop: list[Callable[[float], None]] = []
        self._until = 0.0

    @property
    def running(self) -> bool:
        """Return whether the process, and so its sockets, does anything now."""
        return self.alive and not self.stopped

    def operate(self, what: str) -> bool:
        """Count an operation that others can see; return whether the process dies in it, and end one that is dead."""
        if not self.alive:
            raise Killed
        self.scheduler.trace(f"{self.name} {what}")
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.kill()
                return True
        return False

    def kill(self) -> None:
        """Kill the process: nothing that it does from now on has an effect."""
        if self.alive:
            self.scheduler.trace(f"{self.name} is killed")
            self.alive = self.stopped = False
            self.scheduler.doom(self)
            for function in self.on_death:
                function()

    def stop(self, seconds: float) -> None:
        """Stop the process for some seconds."""
        if self.alive:
            self.scheduler.trace(f"{self.name} stops")
            self.stopped = True
            self._until = max(self._until, self.scheduler.now + seconds)
            self.scheduler.hold(self)
            self.scheduler.after(seconds, self._resume)
            for function in self.on_stop:
                function(seconds)

    def _resume(self) -> None:
        if self.stopped and self.scheduler.now >= self._until:
            self.scheduler.trace(f"{self.name} continues")
            self.stopped = False
            self.scheduler.touch(self)
            for function in list(self.on_resume):
                function()


class SimulatedThread(threading.Thread):
    """A thread of a simulated process."""

    def __init__(
        self, scheduler: Scheduler, process: SimulatedProcess, name: str, function: Callable[[], None]
    ) -> None:
        super().__init__(name=f"{process.name} {name}", daemon=True)
        self.process, self.baton = process, threading.Lock()
        self.ready: Callable[[], Any] | None = lambda: True
        self.queued = self.over = False
        self.turn = 0
        self._scheduler, self._function = scheduler, function
        self.baton.acquire()

    def run(self) -> None:
        self.baton.acquire()
        try:
            if self.process.alive:
                self.ready = None
                self._function()
        except Killed:
            pass
        except BaseException as error:
            self._scheduler.failures.append((self.name, error))
        finally:
            self.over = True
            self._scheduler.leave(self)


class Scheduler:
    """The order of all that happens.

    Args:
        seed: seed of all that is drawn.

    Attributes:
        now: simulated seconds.
        failures: threads that an exception has ended, and the exception.
        current: thread that holds the baton; None: the caller of ``run``.
    """

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.failures: list[tuple[str, BaseException]] = []
        self.current: SimulatedThread | None = None
        self.log: list[str] | None = None
        self._digest = hashlib.blake2b(digest_size=16)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._touched: dict[SimulatedProcess, None] = {}
        self._ready: list[SimulatedThread] = []
        self._doomed: list[SimulatedThread] = []
        self._finished: Callable[[], bool] = lambda: True
        self._end, self._main = 0.0, threading.Lock()
        self._tasks: dict[SimulatedThread, None] = {}
        self._main.acquire()

    @property
    def digest(self) -> str:
        """Return a digest of all that has happened, with its times."""
        return self._digest.hexdigest()

    def trace(self, text: str) -> None:
        """Note something that happens."""
        line = f"{self.now:.6f} {text}"
        self._digest.update(line.encode())
        if self.log is not None:
            self.log.append(line)

    def after(self, seconds: float, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in some seconds; it must not wait."""
        heapq.heappush(self._events, (self.now + seconds, next(self._order), function, arguments))

    def touch(self, process: SimulatedProcess) -> None:
        """Note that something has changed for which a thread of a process may wait."""
        self._touched[process] = None

    def start(self, process: SimulatedProcess, function: Callable[[], None], name: str) -> SimulatedThread:
        """Start a thread of a process."""
        task = SimulatedThread(self, process, name, function)
        process.tasks.append(task)
        self._tasks[task] = None
        self.touch(process)
        task.start()
        return task

    def wait(self, ready: Callable[[], Any], seconds: float | None = None) -> None:
        """Let others run until a condition holds or some seconds are over; called by a simulated thread."""
        task = self.current
        assert task is not None
        if not task.process.alive:
            raise Killed
        task.turn += 1
        end = None if seconds is None else self.now + seconds
        task.ready = ready if end is None else lambda: ready() or self.now >= end
        if seconds is not None:
            self.after(seconds, self._expire, task, task.turn)
        self.touch(task.process)
        self._pass_on(task)
        task.ready = None
        if not task.process.alive:
            raise Killed

    def run(self, finished: Callable[[], bool], limit: float) -> bool:
        """Run until a condition holds; return whether it held before the limit of time.

        Args:
            finished: condition, which is looked at when a thread has waited or ended.
            limit: simulated seconds.
        """
        self._finished, self._end = finished, limit
        self._pass_on(None)
        return finished()

    def end(self) -> None:
        """Kill all processes, and let their threads end."""
        self._finished = lambda: not self._tasks
        for task in list(self._tasks):
            task.process.kill()
        if self._tasks:
            self._pass_on(None)

    def doom(self, process: SimulatedProcess) -> None:
        """Let the threads of a killed process run to their end, before all others."""
        self._ready = [each for each in self._ready if each.process is not process]
        self._doomed += [each for each in process.tasks if each is not self.current and each not in self._doomed]

    def hold(self, process: SimulatedProcess) -> None:
        """Let no thread of a stopped process run."""
        for each in process.tasks:
            each.queued = False
        self._ready = [each for each in self._ready if each.process is not process]

    def leave(self, task: SimulatedThread) -> None:
        """End a thread."""
        del self._tasks[task]
        task.process.tasks.remove(task)
        self.touch(task.process)
        self.current = None
        self.current = following = self._next()
        (self._main if following is None else following.baton).release()

    def _expire(self, task: SimulatedThread, turn: int) -> None:
        if task.turn == turn:
            self.touch(task.process)

    def _pass_on(self, task: SimulatedThread | None) -> None:
        """Give the baton to the next thread, and wait until it comes back."""
        self.current = None
        self.current = following = self._next()
        if following is not task:
            (self._main if following is None else following.baton).release()
            (self._main if task is None else task.baton).acquire()

    def _next(self) -> SimulatedThread | None:
        """Find the thread that runs next; None is the caller of ``run``."""
        while True:
            if self._doomed:
                return self._doomed.pop(0)
            if self._finished() or self.now >= self._end or not (self._ready or self._touched or self._events):
                return None
            self._queue()
            if self._ready:
                self.now += TURN * self.random.random()
            if not self._ready or (self._events and self._events[0][0] <= self.now):
                self._happen()
            elif self._ready:
                task = self._ready.pop(int(self.random.random() * len(self._ready)))
                task.queued = False
                return task

    def _queue(self) -> None:
        touched, self._touched = self._touched, {}
        for process in touched:
            for task in process.tasks if process.running else ():
                if not task.queued and task.ready is not None and task.ready():
                    task.queued = True
                    self._ready.append(task)

    def _happen(self) -> None:
        """Let the next event happen."""
        time, _, function, arguments = heapq.heappop(self._events)
        self.now = max(self.now, time)
        function(*arguments)
