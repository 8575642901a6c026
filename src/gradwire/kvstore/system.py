"""The machine that a server or a worker of the store runs on: its clock, random bytes, sockets, threads and waiting.

They get all of it from one object, so that a simulation can put its own in its place and run the same loops.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from io import FileIO
from pathlib import Path
from typing import Any

import zmq

from gradwire._files import replace_file
from gradwire._system import BaseSystem

__all__ = ["SYSTEM", "Disk", "System"]


class Disk:
    """The files of a machine, as far as a server needs them; each function raises OSError as the system does."""

    def __init__(self) -> None:
        self._reserved: list[socket.socket] = []

    def read(self, path: Path) -> bytes:
        """Return the bytes of a file."""
        return path.read_bytes()

    def append(self, path: Path, start: int, pieces: Sequence[bytes | memoryview], *, flushed: bool) -> None:
        """Write bytes from a place of a file on, and drop what lies behind them.

        Args:
            path: a file that exists.
            start: place of the first byte.
            pieces: bytes that end the file.
            flushed: true: return when they are on the disk; false: when they survive the end of the process.
        """
        with path.open("r+b", buffering=0) as file:
            # What an interrupted write has left must not follow what is written now.
            file.truncate(start)
            file.seek(start)
            _write(file, pieces)
            if flushed:
                # The system may keep what was written in memory for many seconds.
                os.fsync(file.fileno())

    def replace(self, path: Path, pieces: Sequence[bytes | memoryview]) -> None:
        """Write a file to the disk, whole or not at all. What an interrupted call has left is used up by the next one.

        Args:
            path: file to replace.
            pieces: bytes of the new file.

        Raises:
            RenamedError: the new file is there, and may not survive a power cut.
        """

        def write(temporary: Path) -> None:
            with temporary.open("wb", buffering=0) as file:
                _write(file, pieces)

        replace_file(path, write, by=_unfinished(path))

    def reserve(self, path: Path) -> bool:
        """Reserve a file for this process until it ends; return False if another process of this machine has it."""
        if sys.platform != "linux":
            return True
        # The name of a socket in Linux's abstract namespace is free as soon as its process has ended.
        self._reserved.append(socket.socket(socket.AF_UNIX))
        try:
            self._reserved[-1].bind(f"\0gradwire {hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()}")
        except OSError:
            return False
        return True

    def clean(self, path: Path) -> None:
        """Remove what an interrupted ``replace`` of a file has left."""
        _unfinished(path).unlink(missing_ok=True)


def _unfinished(path: Path) -> Path:
    """Return the path at which the next version of a file is written."""
    real = Path(os.path.realpath(path))
    return real.with_name(f".{real.name}.new")


def _write(file: FileIO, pieces: Sequence[bytes | memoryview]) -> None:
    for piece in pieces:
        left = memoryview(piece).cast("B")
        while left:
            left = left[file.write(left) :]


class System(BaseSystem):
    """The machine on which this process runs."""

    disk = Disk()

    def process(self) -> int:
        """Return the number of this process: a child that was forked has another one."""
        return os.getpid()

    def at_exit(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function when this process ends."""
        atexit.register(function, *arguments)

    def context(self) -> zmq.Context[Any]:
        """Make a context for sockets."""
        return zmq.Context()

    def poller(self) -> zmq.Poller:
        """Make a poller for sockets of such a context."""
        return zmq.Poller()

    def start(self, function: Callable[..., None], *arguments: Any, name: str) -> threading.Thread:
        """Start a thread that does not keep the process from ending."""
        thread = threading.Thread(target=function, args=arguments, name=name, daemon=True)
        thread.start()
        return thread

    def join(self, thread: threading.Thread, seconds: float) -> bool:
        """Wait until a thread has ended, unless it is the calling one; return whether it has."""
        if thread is not threading.current_thread():
            thread.join(seconds)
        return not thread.is_alive()

    def wait(self, futures: Sequence[Future[int]], seconds: float) -> tuple[set[Future[int]], set[Future[int]]]:
        """Wait until all futures are done or one has failed; return those that are done, and the others."""
        done, waiting = wait(futures, seconds, FIRST_EXCEPTION)
        return done, waiting


SYSTEM = System()
