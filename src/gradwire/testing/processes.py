"""Real ranks for a function: processes of this machine over Gloo.

The processes fork from a server that has imported torch and gradwire once and never used a thread pool, so that a
rank starts in milliseconds.
"""

from __future__ import annotations

import faulthandler
import multiprocessing as mp
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

__all__ = ["RankFailedError", "run_ranks"]

# A DDP model imports torch._dynamo when it is made, more than a second in each rank if the server has not.
PRELOAD = [
    *("torch", "torch.distributed", "torch.profiler", "torch._dynamo"),
    *("gradwire.frontends.ddp", "gradwire.frontends.fsdp", "gradwire.contrib.fsdp1"),
    *("gradwire.frontends.optimizer", "gradwire.frontends.process_group", "gradwire.rounds", "gradwire.compat"),
]
"""Modules that the server imports before the first rank; a test suite adds what its own modules import."""

LATE = "did not finish before the deadline"
"""The message of a rank that did not."""

CONNECTS = 3
"""Number of attempts to connect a group."""


class RankFailedError(AssertionError):
    """A rank raised, died or did not finish; ``errors`` maps ranks to their messages."""

    def __init__(self, errors: dict[int, str]) -> None:
        self.errors = errors
        super().__init__("\n".join(f"rank {rank}:\n{text}" for rank, text in sorted(errors.items())))

    @property
    def late(self) -> bool:
        """True if no rank failed, and some did not finish in time."""
        return set(self.errors.values()) == {LATE}


class _NotConnectedError(RankFailedError):
    """The group could not be made on a rank, so that none can have come further than its first collective."""


def run_ranks(
    world: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = 600.0,
    backend: str = "gloo",
    end: bool = False,
    prepare: Callable[[int], object] | None = None,
    patience: float | None = None,
) -> list[Any]:
    """Call ``function(rank, *args)`` on ``world`` ranks of one group; returns their results in rank order.

    Args:
        world: number of ranks, >= 1.
        function: importable by its module; its result is sent back.
        args: sent to every rank.
        timeout: seconds until all ranks must have finished; it also bounds each collective.
        backend: ``gloo``, or ``nccl``; ranks share GPUs where there are fewer, if the NCCL lets them.
        end: true: every process must also end by itself, with exit code 0.
        prepare: called with the rank in each process before it joins the group; importable like ``function``.
        patience: seconds that a collective may take; None: as long as all of it.

    A group that cannot be connected is made anew, with new processes, up to ``CONNECTS`` times: under load Gloo
    sometimes loses one of the connections of a mesh while it makes them.

    Raises:
        RankFailedError: a rank failed; the message has the traceback of every rank that did.
    """
    deadline = time.monotonic() + timeout
    for attempt in range(1, CONNECTS + 1):
        try:
            return _run(world, function, args, deadline, patience or timeout, backend, end, prepare)
        except _NotConnectedError:
            if attempt == CONNECTS or time.monotonic() >= deadline:
                raise
    raise AssertionError("unreachable")


def _run(
    world: int,
    function: Callable[..., Any],
    args: Any,
    deadline: float,
    patience: float,
    backend: str,
    end: bool,
    prepare: Callable[[int], object] | None,
) -> list[Any]:
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(world)]
        processes: list[BaseProcess] = [
            context.Process(
                target=_rank, args=(rank, world, folder, patience, backend, send, function, args, prepare), daemon=True
            )
            for rank, (_, send) in enumerate(pipes)
        ]
        for process, (_, send) in zip(processes, pipes, strict=True):
            process.start()
            send.close()
        try:
            results = _collect([receive for receive, _ in pipes], deadline, partial(_death, processes, folder))
            if end:
                _check_ends(processes)
            return results
        finally:
            for process in processes:
                process.join(1.0)
                process.kill()


def _rank(
    rank: int,
    world: int,
    folder: str,
    patience: float,
    backend: str,
    send: Connection,
    function: Callable[..., Any],
    args: Any,
    prepare: Callable[[int], object] | None,
) -> None:
    torch.set_num_threads(1)
    faulthandler.enable(os.open(_crash_file(folder, rank), os.O_WRONLY | os.O_CREAT))
    connected = False
    try:
        if prepare is not None:
            prepare(rank)
        if backend == "nccl":
            torch.cuda.set_device(rank % torch.cuda.device_count())
        dist.init_process_group(
            backend,
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=patience),
        )
        connected = True
        send.send(("ok", pickle.dumps(function(rank, *args))))
    except BaseException:
        send.send(("error" if connected else "not connected", traceback.format_exc()))
    finally:
        send.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def _check_ends(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.join(20.0)
    ends = {rank: f"exit code {process.exitcode}" for rank, process in enumerate(processes) if process.exitcode != 0}
    if ends:
        raise RankFailedError(ends)


def _crash_file(folder: str, rank: int) -> str:
    return f"{folder}/crash{rank}"


def _death(processes: list[BaseProcess], folder: str, rank: int) -> str:
    """Say how a rank that sent nothing ended: its signal or exit code, and where its threads were if it crashed."""
    process = processes[rank]
    process.join(20.0)
    code = process.exitcode
    reason = "no exit code yet" if code is None else f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    # One that died while it was starting has not made its file.
    file = Path(_crash_file(folder, rank))
    return f"died without a word: {reason}\n{file.read_text() if file.exists() else ''}".rstrip()


def _collect(pipes: list[Connection], deadline: float, death: Callable[[int], str]) -> list[Any]:
    results: dict[int, Any] = {}
    errors: dict[int, str] = {}
    open_pipes = {pipe: rank for rank, pipe in enumerate(pipes)}
    while open_pipes:
        ready = wait(list(open_pipes), max(0.0, deadline - time.monotonic()))
        if not ready:
            errors |= dict.fromkeys(open_pipes.values(), LATE)
            break
        for pipe in cast("list[Connection]", ready):
            rank = open_pipes.pop(pipe)
            try:
                kind, value = pipe.recv()
            except EOFError:
                kind, value = "error", death(rank)
            if kind == "not connected":  # The others would wait for this rank until the deadline.
                raise _NotConnectedError({rank: value})
            if kind == "ok":
                results[rank] = pickle.loads(value)
            else:
                errors[rank] = value
    if errors:
        raise RankFailedError(errors)
    return [results[rank] for rank in range(len(pipes))]
