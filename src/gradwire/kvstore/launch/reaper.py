"""A program that ends what another process started on this machine when that process is gone, however it ended.

It reads from a pipe which process groups there are. The end of the pipe says that nobody is left who could end them.

Invariants:
    This file is also the program, which needs nothing but the standard library.

Why:
    A process that is killed (-9) cannot end anything any more.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable

__all__ = ["GRACE", "Reaper"]

GRACE = 5.0
"""Seconds between asking a process to end and ending it."""


class Reaper:
    """A set of process groups that end with this process, each known by the id of its leader."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def hold(self, group: int) -> None:
        """End this group when this process has ended."""
        # Two threads that start processes must not start two reapers, nor mix their lines in one pipe.
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                # Ctrl-C is not for it, and who waits for the last output need not wait for it.
                self._process = subprocess.Popen(
                    [sys.executable, "-S", __file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            self._say(self._process, group)

    def let_go(self, group: int) -> None:
        """Drop a group, because it has ended or may outlive this process."""
        # Threads that end processes and such as start them write to the same pipe.
        with self._lock:
            if self._process is not None:
                self._say(self._process, -group)

    def _say(self, process: "subprocess.Popen[bytes]", number: int) -> None:
        assert process.stdin is not None
        # If the reaper was killed, nothing is to be ended.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"%d\n" % number)
            process.stdin.flush()


def main() -> None:
    """Read the groups until the other process is gone, and then end them."""
    groups: set[int] = set()
    for line in sys.stdin:
        number = int(line)
        if number > 0:
            groups.add(number)
        else:
            groups.discard(-number)
    end(groups)


def end(groups: Iterable[int]) -> None:
    """Ask a group to end, wait for a while, and kill it."""
    left = [group for group in groups if send_signal(group, signal.SIGTERM)]
    deadline = time.monotonic() + GRACE
    while left and time.monotonic() < deadline:
        # These are no children of this process, which can only ask whether they are left.
        time.sleep(0.05)
        left = [group for group in left if send_signal(group, 0)]
    for group in left:
        send_signal(group, signal.SIGKILL)


def send_signal(group: int, number: int) -> bool:
    """Send a signal to a group; return whether any process of it was left."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        # The group is gone, or its id belongs to another user's by now.
        return False
    return True


if __name__ == "__main__":
    main()
