"""Thread on which the exchanges of a model run, one after the other.

Invariants:
    Exchanges run in the order in which they were submitted, which is the same on all ranks. So a method may issue a
    second collective right after the first, and nothing is started in a callback of a collective.

Failure modes:
    * After a failure the ranks no longer agree on what comes next, so every later exchange fails at once with the first
      error.
    * A thread that is inside C++ when the interpreter ends takes the process down, so the thread ends before that.
"""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.errors import ConfigError, GroupError

__all__ = ["Worker"]

Job = tuple[Callable[[], Tensor], "Future[Tensor]"]
Jobs = queue.SimpleQueue["Job | None"]

PATIENCE = 10.0
"""Seconds that closing waits for an exchange under way; its own deadline is the process group's."""


class Worker:
    """A thread with a queue of exchanges; it starts with the first one."""

    def __init__(self) -> None:
        self._jobs: Jobs = queue.SimpleQueue()
        self._failed: list[Exception] = []
        self._stop: weakref.finalize[..., Worker] | None = None
        self._closed = False

    def submit(self, job: Callable[[], Tensor]) -> Future[Tensor]:
        """Run ``job`` after all earlier ones; the future gets its result or its exception.

        Raises:
            ConfigError: the worker was closed, and its process group may serve somebody else.
        """
        if self._closed:
            raise ConfigError("state must be open to exchange anything, got one after close(): make a new one")
        future: Future[Tensor] = Future()
        if self._stop is None:
            arguments = (self._jobs, self._failed, torch.get_num_threads())
            thread = threading.Thread(target=_work, name="gradwire", args=arguments, daemon=True)
            thread.start()
            # At the end of the process ``_end_all`` does it: weakref's own function gives up on all that is left when
            # another thread collects an object in that moment.
            self._stop = weakref.finalize(self, _end_one, id(self), self._jobs, thread)
            self._stop.atexit = False
            _open[id(self)] = partial(_end, self._jobs, thread)
        # For C++, such as DDP's reducer, an exception that Python sets is a mere value; one that is raised in a
        # callback is an error for both.
        done: Future[Tensor] = future.then(Future.wait)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            # A new thread has another current device, and a stream that does not wait for the caller's.
            job = partial(_on_stream, torch.cuda.current_stream(), job)
        self._jobs.put((job, future))
        return done

    def result(self, future: Future[Tensor]) -> Tensor:
        """Wait for the job of a future from ``submit``; raise what the job raised, not torch's account of it."""
        try:
            return future.wait()
        except RuntimeError as error:
            raise (self._failed[0] if self._failed else error) from None

    def close(self) -> None:
        """Finish the queue and end the thread; nothing can be submitted any more."""
        # First, so that nothing is queued behind the end of the thread.
        self._closed = True
        if self._stop is not None:
            self._stop()
            self._stop = None


def _on_stream(stream: torch.cuda.Stream, job: Callable[[], Tensor]) -> Tensor:
    """Run a job on a stream, and on its device."""
    with torch.cuda.stream(stream):
        return job()


def _work(jobs: Jobs, failed: list[Exception], threads: int) -> None:
    # OpenMP keeps this number for each thread, so a new one would begin with the default and not with the user's.
    torch.set_num_threads(threads)
    while (item := jobs.get()) is not None:
        job, future = item
        try:
            # The other ranks may have stopped at the exchange that failed, and would not answer this one.
            if failed:
                raise GroupError(f"an earlier exchange failed: {failed[0]}")
            # A job has no graph; whoever waits for its future may have one in a function of this thread.
            torch.set_grad_enabled(False)
            try:
                result = job()
            finally:
                torch.set_grad_enabled(True)
            future.set_result(result)
        except Exception as error:
            # Before the future is set, because whoever waits for that reads the error here.
            failed.append(error)
            future.set_exception(error)  # type: ignore[arg-type]
        # While it waits for the next job the thread must not keep the last one's model alive.
        del item, job, future


def _end(jobs: Jobs, thread: threading.Thread) -> None:
    jobs.put(None)
    # The last job of a worker may drop the last reference to it, and a thread cannot wait for itself.
    if thread is not threading.current_thread():
        # With a deadline: an exchange whose peer is gone may last as long as the group's timeout.
        thread.join(PATIENCE)


_open: dict[int, Callable[[], None]] = {}
"""Functions that end the threads that run, by the identities of their workers."""


def _end_one(key: int, jobs: Jobs, thread: threading.Thread) -> None:
    _open.pop(key, None)
    _end(jobs, thread)


@atexit.register
def _end_all() -> None:
    # A copy, because a worker that is collected meanwhile removes its entry.
    for end in list(_open.values()):
        end()
