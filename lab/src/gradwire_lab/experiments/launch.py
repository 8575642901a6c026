"""Launch of workers on this machine with torch's elastic launcher.

Invariants:
    A launch always ends: a collective has a deadline, a worker that fails takes the others with it, and an interrupt or
    the end of the time stops them all.

Failure modes:
    In each of these cases no process is left running, and the error says which worker failed first and why.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import popen_spawn_posix, resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gradwire.errors import GroupError, is_int, require
from gradwire_lab.netlab import Netlab
from gradwire_lab.netlab.names import INTERFACE, PORT, LabNames
from gradwire_lab.netlab.system import enter

__all__ = ["OutOfTimeError", "begin", "end_with_parent", "launch"]

_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
_PR_SET_PDEATHSIG = 1
_START_WORKERS = inspect.unwrap(LocalElasticAgent._start_workers).__code__


class OutOfTimeError(GroupError):
    """The workers were stopped because their time was over."""


class _Late(BaseException):
    """An interruption, like ``KeyboardInterrupt``, which no handler of failures catches."""


def launch(
    workers: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = 60.0,
    lab: Netlab | None = None,
    backend: str = "gloo",
    until: float | None = None,
) -> list[Any]:
    """Call ``function(*args)`` in each of ``workers`` processes that form a group, with one torch thread each.

    Args:
        workers: number of workers, >= 1.
        function: importable by its module; its result is sent back.
        args: sent to every worker.
        timeout: seconds that a collective may take before the workers give up.
        lab: each worker moves into its namespace there, so that the group's traffic crosses the lab's links; None: it
            stays on this machine's loopback.
        backend: "gloo"; or "nccl", and each worker has a GPU of its own.
        until: ``time.time()`` at which the workers are stopped; None: never.

    Returns:
        The results in rank order.

    Raises:
        ConfigError: a wrong number of workers, or the lab is of another one.
        GroupError: a worker failed; the text is that of the first failure.
        OutOfTimeError: the time was over before the workers had ended; they are gone.
        KeyboardInterrupt: the user stopped it; the workers are gone.
    """
    require(is_int(workers, 1), "workers", "an integer >= 1", workers)
    require(lab is None or lab.workers == workers, "workers", "as many as the lab has", workers)
    names = None if lab is None else lab.names
    with ended_by(until), quiet(), signals_restored(), interrupted_alone(), tempfile.TemporaryDirectory() as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=workers,
            run_id=uuid.uuid4().hex,
            max_restarts=0,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        if hasattr(config, "shutdown_timeout"):  # torch 2.11 waits half a minute and has no name for it.
            config.shutdown_timeout = 5
        try:
            results = elastic_launch(config, worker)(timeout, names, backend, function, args)
        except ChildFailedError as error:
            raise GroupError(first_failure(error, Path(folder))) from None
        except SignalException as error:
            raise KeyboardInterrupt(str(error)) from None
    return [results[rank] for rank in range(workers)]


@contextmanager
def ended_by(until: float | None) -> Iterator[None]:
    """Interrupt the block when the time is over.

    By a signal to the main thread, as Ctrl-C is, so that it ends whatever the thread waits for. A thread sends it: the
    process's one alarm clock may be in use.

    Raises:
        OutOfTimeError: the block did not end in time.
    """
    if until is None:
        yield
        return
    waker = threading.Timer(
        min(max(until - time.time(), 0.0), threading.TIMEOUT_MAX),
        lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1),
    )
    waker.daemon = True
    before = signal.signal(signal.SIGUSR1, raises(_Late))
    try:
        try:
            waker.start()
            yield
        finally:
            waker.cancel()
            # It may just be sending.
            waker.join()
    except _Late:
        raise OutOfTimeError(f"the time was over at {time.ctime(until)}: the workers were stopped") from None
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def interrupted_alone() -> Iterator[None]:
    """Send Ctrl-C to this process only, and not to the processes it starts, which the terminal would interrupt as well.

    Whoever is started by a thread that blocks a signal blocks it, too, from its first instruction on: a handler would
    come too late for a worker that is importing torch. So this thread blocks it, and another one waits for it.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) in (
        signal.SIG_IGN,
        None,
    ):
        yield
        return
    done = threading.Event()
    main = threading.main_thread().ident or 0

    def wait() -> None:
        signal.sigwait({signal.SIGINT})
        if not done.is_set():
            # The main thread gets the signal, so that its handler ends whatever it waits for.
            signal.pthread_kill(main, signal.SIGUSR2)

    # It unblocks the signal in whoever starts it, and is started once.
    resource_tracker.ensure_running()
    before = signal.signal(signal.SIGUSR2, raises(KeyboardInterrupt))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    try:
        yield
    finally:
        done.set()
        if waiter.is_alive():
            signal.pthread_kill(waiter.ident or 0, signal.SIGINT)
        waiter.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGUSR2, before)


def raises(error: type[BaseException]) -> Callable[[int, FrameType | None], None]:
    """A signal handler that raises ``error``; while workers are being started, it does so a moment later."""

    def handle(number: int, frame: FrameType | None) -> None:
        if starts_a_worker(frame):
            send_again(number, handle)
        else:
            raise error

    return handle


def starts_a_worker(frame: FrameType | None) -> bool:
    """Return whether a worker has not been told yet what to run, or is not known to the launcher yet.

    Interrupted now, it would show a traceback: the pipe that it reads from ends, or the launcher goes away without
    stopping it, and with it the semaphores that it opens.
    """
    while frame is not None:
        if frame.f_code is _START_WORKERS or frame.f_code.co_filename == popen_spawn_posix.__file__:
            return True
        frame = frame.f_back
    return False


def send_again(number: int, handler: Callable[[int, FrameType | None], None]) -> None:
    """Repeat a signal to the main thread in a moment, if its handler is still the same then."""

    def send() -> None:
        if signal.getsignal(number) is handler:
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    timer = threading.Timer(0.02, send)
    timer.daemon = True
    timer.start()


@contextmanager
def quiet() -> Iterator[None]:
    """Drop the launcher's log, which repeats our one-line error with a stack trace for each process.

    The workers' C++ log tells errors alone, too: addresses of a lab have no names, and a store warns of each.
    """
    level = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = level or "ERROR"
    loggers = [logging.getLogger(f"torch.{name}") for name in ("distributed.elastic", "multiprocessing.spawn")]
    nothing = logging.NullHandler()
    for logger in loggers:
        logger.addHandler(nothing)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.propagate = True
            logger.removeHandler(nothing)
        if level is None:
            del os.environ[_LOG_LEVEL]


@contextmanager
def signals_restored() -> Iterator[None]:
    """Restore the signal handlers, because the launcher leaves its own behind."""
    before = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def worker(
    timeout: float, names: LabNames | None, backend: str, function: Callable[..., Any], args: tuple[Any, ...]
) -> Any:
    """Run one worker: join the group, work, leave the group."""
    end_with_parent()
    # Before each run a worker collects the garbage of those before it: not among what was imported.
    gc.freeze()
    torch.set_num_threads(1)
    if names is None:
        join(timedelta(seconds=timeout), backend)
    else:
        join_in_lab(timedelta(seconds=timeout), names)
    result = function(*args)
    # Only now: after a failure the others would see the connection break before the cause is written down.
    dist.destroy_process_group()
    return result


def end_with_parent() -> None:
    """End this process when the launcher was killed, even while it waits in a collective; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def join(timeout: timedelta, backend: str) -> None:
    """Join the group over the loopback, where the launcher's store is."""
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
    begin(timeout, backend)


def begin(timeout: timedelta, backend: str) -> None:
    """Make the default group that the environment describes; NCCL is joined by Gloo for tensors on the CPU.

    Raises:
        ConfigError: there are more workers on this machine than GPUs.
    """
    if backend == "nccl":
        local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        require(local < gpus, "workers", f"at most {gpus} on this machine, one for each GPU", local + 1)
        torch.cuda.set_device(local)
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout)


def join_in_lab(timeout: timedelta, names: LabNames) -> None:
    """Join the group over the lab's links, with another store, because the launcher's cannot be reached from inside."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    enter(names.worker(rank))
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    address = names.address(0)
    store = dist.TCPStore(address, PORT, world, is_master=rank == 0, timeout=timeout)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)


def first_failure(error: ChildFailedError, folder: Path) -> str:
    """Find the first failure: a worker that was killed, else the earliest exception."""
    rank, failure = error.get_first_failure()
    notes = sorted(folder.rglob("error.json"), key=lambda note: note.stat().st_mtime_ns)
    if failure.exitcode < 0:
        return f"worker {rank} died: {failure.message}"
    if not notes:
        return f"worker {rank} ended with exit code {failure.exitcode} before it could say why"
    message = json.loads(notes[0].read_text())["message"]
    return f"worker {notes[0].parent.name} failed: {message['message']}"
