"""A command that every worker of a lab runs."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from gradwire.errors import require
from gradwire_lab.netlab.lab import Netlab

__all__ = ["run_all"]

GRACE = 10.0
"""Seconds in which workers must end that were told to, before they are killed."""


def run_all(
    lab: Netlab,
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    watch: Callable[[Sequence[int]], AbstractContextManager[object]] = nullcontext,
) -> int:
    """Run a command on every worker until all have ended; return the exit code of the first that failed, or 0.

    What they write goes where this process writes. An interrupt of the terminal reaches them as well.

    Args:
        lab: lab whose workers run it.
        command: program with its arguments.
        env: more variables.
        watch: makes a context from the pids of the workers, in which they are waited for.

    Raises:
        ConfigError: there is no such program.
    """
    require(shutil.which(command[0]) is not None, "COMMAND", "a program that can be started", command[0])
    started = [lab.popen(rank, command, env=env) for rank in range(lab.workers)]
    try:
        with watch([process.pid for process in started]):
            return _first_failure(started)
    finally:
        _end(started)


def _first_failure(started: Sequence[subprocess.Popen[bytes]]) -> int:
    while True:
        codes = [process.poll() for process in started]
        failed = [code for code in codes if code]
        if failed:
            return failed[0] if failed[0] > 0 else 128 - failed[0]
        if None not in codes:
            return 0
        time.sleep(0.05)


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Tell the workers to end that have not, and kill those that are still there after ``GRACE`` seconds."""
    deadline = time.monotonic() + GRACE
    for process in started:
        if process.poll() is None:
            process.terminate()
    for process in started:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(GRACE)
