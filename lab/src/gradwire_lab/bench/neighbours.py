"""Busy neighbours: processes that compute beside a measured operation, as on a machine that is shared."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from gradwire.errors import is_int, require

__all__ = ["Neighbours", "neighbours"]

_SETTLING = 0.02  # until the scheduler has found a place for who begins to compute
_PATIENCE = 5.0  # seconds in which a neighbour ends


class Neighbours:
    """Processes that compute without pause on any processor, between ``compute`` and ``rest``.

    They end with the block, and also if this process is killed, because they read from a pipe that it holds open.

    Args:
        count: processes, 0 to 256.

    Raises:
        ConfigError: a count out of range.

    Example:
        >>> with Neighbours(1) as neighbours:
        ...     neighbours.compute()
        ...     neighbours.rest()
    """

    def __init__(self, count: int) -> None:
        require(is_int(count, 0, 256), "busy", "an integer in [0, 256]", count)
        self.count = count
        self.processes: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        script = str(Path(__file__).with_name("_busy_process.py"))
        with ExitStack() as stack:
            for _ in range(self.count):
                process = subprocess.Popen([sys.executable, "-I", "-S", script], stdin=subprocess.PIPE)
                stack.callback(_end, process)
                self.processes.append(process)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def compute(self) -> None:
        """Let all of them compute."""
        self._order(b"1")

    def rest(self) -> None:
        """Let all of them wait."""
        self._order(b"0")

    def _order(self, order: bytes) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(order)
            process.stdin.flush()
        time.sleep(_SETTLING)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the process's input, and kill it if that was not enough."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def neighbours(count: int) -> Iterator[list[int]]:
    """Start processes that keep a core busy each, until the block is left.

    Args:
        count: number of processes, 0 to 256.

    Yields:
        Their process ids.

    Raises:
        ConfigError: a count out of range.

    Example:
        >>> with neighbours(2) as ids:
        ...     len(ids)
        2
    """
    with Neighbours(count) as started:
        started.compute()
        yield [process.pid for process in started.processes]
