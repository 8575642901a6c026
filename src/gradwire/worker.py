"""The thread that talks to the network.

Law: exchanges run in the order in which they were submitted, which is the same on all ranks; so a method may issue a
second collective after the first without asking anybody, and nothing is ever started inside a callback. After a
failure the ranks no longer agree on what comes next, so every later exchange fails at once with the first error.
The thread ends before the interpreter does: one that is caught inside C++ at that moment takes the process down.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.errors import ConfigError, GroupError

__all__ = ["Worker"]

Result = TypeVar("Result")

Job = tuple[Callable[[], Any], "Future[Any]"]
Jobs = queue.SimpleQueue["Job | None"]

PATIENCE = 10.0
"""Seconds that closing waits for an exchange under way; its own deadline is the process group's."""

LAST = 2.0
"""Seconds that the end of the process waits for what was started: it ends unless another rank has come apart."""


class Worker:
    """A thread with a queue of exchanges; it starts with the first one."""

    def __init__(self) -> None:
        self._jobs: Jobs = queue.SimpleQueue()
        self._failed: list[Exception] = []
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()
        """Set when the process ends."""
        self._closed = False

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        """Run ``job`` after all earlier ones; the future gets its result or its exception.

        An exception set from Python stays a mere value to C++; one raised in a callback is an error to both.

        Raises:
            ConfigError: the worker was closed, and its process group may serve somebody else.
        """
        if self._closed:
            raise ConfigError("state must be open to exchange anything, got one after close(): make a new one")
        future: Future[Result] = Future()
        if self._thread is None:
            arguments = (self._jobs, self._failed, torch.get_num_threads())
            self._thread = threading.Thread(target=_work, name="gradwire", args=arguments, daemon=True)
            self._thread.start()
            # At the end of the process ``_end_all`` does it: weakref's own function gives up when another thread
            # collects an object in that moment.
            _open[id(self)] = partial(_end_with_process, self._jobs, self._thread, self._ends)
            weakref.finalize(self, _end_with_worker, id(self), self._jobs, self._thread).atexit = False
        done: Future[Result] = future.then(lambda finished: finished.wait())
        self._jobs.put((job, future))
        return done

    def submit_start(self, start: Callable[[], Future[Tensor]]) -> Future[Tensor]:
        """Run a job that only starts something, after all earlier ones; the future gets what was started.

        The thread does not wait for it, so any number of such things may be under way. When the process ends nothing
        is started any more, and what is under way is waited for, because it would end without an interpreter.

        Raises:
            ConfigError: the worker was closed, and its process group may serve somebody else.
        """
        begun, arrived = self.submit(partial(_start, self._ends, start)), Future[Tensor]()
        _under_way.add(arrived)
        given = arrived.then(_given)
        begun.then(partial(_follow, arrived))
        return given

    def result(self, future: Future[Tensor]) -> Tensor:
        """Wait for the job of a future from ``submit``; raise what the job raised, not torch's account of it."""
        try:
            return future.wait()
        except RuntimeError as error:
            raise (self._failed[0] if self._failed else error) from None

    def close(self) -> None:
        """Finish the queue and end the thread; nothing can be submitted any more."""
        self._closed = True
        if self._thread is not None:
            _end(self._jobs, self._thread)
            self._thread = None


def _start(ends: threading.Event, start: Callable[[], Future[Tensor]]) -> Future[Tensor]:
    if ends.is_set():
        raise GroupError("the process ends")
    return start()


def _given(arrived: Future[Tensor]) -> Tensor:
    _under_way.discard(arrived)
    return arrived.wait()


def _follow(arrived: Future[Tensor], begun: Future[Future[Tensor]]) -> None:
    """Have ``arrived`` end as what a job has begun, or as the job if that failed."""
    try:
        begun.value().then(partial(_hand_on, arrived))
    except Exception as error:
        arrived.set_exception(error)  # type: ignore[arg-type]


def _hand_on(arrived: Future[Tensor], done: Future[Tensor]) -> None:
    try:
        arrived.set_result(done.value())
    except Exception as error:
        arrived.set_exception(error)  # type: ignore[arg-type]


def _work(jobs: Jobs, failed: list[Exception], threads: int) -> None:
    torch.set_num_threads(threads)
    while (item := jobs.get()) is not None:
        job, future = item
        try:
            if failed:
                raise GroupError(f"an earlier exchange failed: {failed[0]}")
            future.set_result(job())
        except Exception as error:
            failed.append(error)
            future.set_exception(error)
        # While it waits for the next job the thread must not keep the last one's model alive.
        del item, job, future


def _end(jobs: Jobs, thread: threading.Thread) -> None:
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(PATIENCE)


def _end_with_worker(key: int, jobs: Jobs, thread: threading.Thread) -> None:
    _open.pop(key, None)
    _end(jobs, thread)


def _end_with_process(jobs: Jobs, thread: threading.Thread, ends: threading.Event) -> None:
    # A process that was forked has none of its parent's threads.
    if thread.is_alive():
        ends.set()
        _end(jobs, thread)


_open: dict[int, Callable[[], None]] = {}
"""Functions that end the threads that run, by the identities of their workers."""

_under_way: set[Future[Tensor]] = set()
"""All that was started and has not ended: it may outlive its worker, but must not outlive the interpreter."""

os.register_at_fork(after_in_child=_under_way.clear)


@atexit.register
def _end_all() -> None:
    for end in list(_open.values()):
        end()
    deadline, waits = time.monotonic() + LAST, bool(_under_way)
    while _under_way and time.monotonic() < deadline:
        time.sleep(0.01)
    if waits:
        # Whoever hands a result on needs the interpreter for a moment longer.
        time.sleep(0.3)
