"""Busy neighbours: processes that compute beside what is measured, as on a machine that is shared.

Law: a neighbour ends with the process that started it, also where that was killed: it computes only as long as a pipe
to its parent is open.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gradwire.errors import is_int, require

__all__ = ["neighbours"]

_PROGRAM = """
import select, sys
x = 1.0
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(100_000):
        x = x * 1.0000001 + 1e-9
"""
"""Milliseconds of arithmetic, then a look at the pipe."""


@contextmanager
def neighbours(count: int) -> Iterator[list[int]]:
    """Processes that keep a core busy each, until the block is left.

    Args:
        count: how many, 0 to 256.

    Yields:
        Their process ids.

    Raises:
        ConfigError: a count out of range.

    Example:
        >>> with neighbours(2) as ids:
        ...     len(ids)
        2
    """
    require(is_int(count, 0, 256), "busy", "an integer in [0, 256]", count)
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-S", "-c", _PROGRAM], stdin=subprocess.PIPE)
            stack.callback(_end, process)
            started.append(process.pid)
        yield started


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
