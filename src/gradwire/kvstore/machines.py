"""Starting processes: on this machine, or over ssh on another one.

Law: a process is a ``Popen`` here, wherever it runs, and ``end_all`` ends it together with all that it started.
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias

from gradwire.errors import ConfigError
from gradwire.kvstore import watch
from gradwire.kvstore.hosts import Host
from gradwire.kvstore.leash import Leash

__all__ = ["GRACE", "Here", "Lines", "Machine", "Piped", "Watched", "end_all", "there", "tied"]

Lines: TypeAlias = "queue.SimpleQueue[str]"

GRACE = 5.0
"""Seconds between asking a process to end and ending it."""

QUIET = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=5",
         "-o", "ServerAliveCountMax=3")  # fmt: skip
"""No terminal, no questions, and no waiting for a machine that is gone."""

LEASH = Leash()
"""Of what this process started on this machine."""


class Leader(subprocess.Popen[bytes]):
    """A process that leads a group of its own, in which all is that it starts."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        super().__init__(command, start_new_session=True, **options)


class Piped(Leader):
    """One whose output is passed on."""

    pumps: Sequence[threading.Thread] = ()


class Machine(ABC):
    """Where processes run."""

    python: str = sys.executable

    @property
    @abstractmethod
    def address(self) -> str:
        """The IP at which its servers listen."""

    @abstractmethod
    def start(self, command: Sequence[str], environment: Mapping[str, str], label: str) -> subprocess.Popen[bytes]:
        """Start a worker."""

    @abstractmethod
    def serve(self, command: Sequence[str], label: str) -> tuple[Piped, Lines]:
        """Start a server; its first line comes in the queue, empty if it ended without one."""


class Here(Machine):
    """This machine. Workers share its terminal."""

    @property
    def address(self) -> str:
        return "127.0.0.1"

    def start(self, command: Sequence[str], environment: Mapping[str, str], label: str) -> subprocess.Popen[bytes]:
        try:
            process = Leader(command, env={**os.environ, **environment})
        except OSError as error:
            raise ConfigError(f"{label} cannot be started: {error}") from None
        LEASH.hold(process.pid)
        return process

    def serve(self, command: Sequence[str], label: str) -> tuple[Piped, Lines]:
        process, first = Piped(command, stdout=subprocess.PIPE), new_lines()
        LEASH.hold(process.pid)
        process.pumps = [pump(process.stdout, label, sys.stdout, first)]
        return process, first


@dataclass(frozen=True, eq=False)
class Watched(Machine):
    """Where processes end when the one that started them does: they run under ``watch``.

    Args:
        host: which machine.
        launcher: the command that runs ``watch`` there.
        python: there.
        folder: there, where processes run.
        environment: what they have on top of what they find there.
    """

    host: Host
    launcher: Sequence[str]
    python: str = sys.executable
    folder: str = "."
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return self.host.listen()

    def start(self, command: Sequence[str], environment: Mapping[str, str], label: str) -> subprocess.Popen[bytes]:
        return self._start(command, environment, label, None)

    def serve(self, command: Sequence[str], label: str) -> tuple[Piped, Lines]:
        first = new_lines()
        return self._start(command, {}, label, first), first

    def _start(self, command: Sequence[str], environment: Mapping[str, str], label: str, first: Lines | None) -> Piped:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = Piped(self.launcher, **pipes)
        process.pumps = [
            pump(process.stdout, label, sys.stdout, first), pump(process.stderr, label, sys.stderr)
        ]  # fmt: skip
        told = {
            "command": list(command), "environment": {**self.environment, **environment}, "folder": self.folder,
            "grace": GRACE,
        }  # fmt: skip
        assert process.stdin is not None
        # What is wrong if it cannot be written, ssh says on stderr, and ends.
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(told).encode() + b"\n")
            process.stdin.flush()
        return process


def there(
    host: Host, ssh: Sequence[str] = ("ssh",), python: str = sys.executable, folder: str = ".",
    environment: Mapping[str, str] | None = None,
) -> Watched:  # fmt: skip
    """Another machine.

    Args:
        host: which.
        ssh: the command that gets there, with options if need be.
        python: there.
        folder: there.
        environment: for all processes there.
    """
    program = Path(watch.__file__).read_text(encoding="utf-8")
    port = () if host.port is None else ("-p", str(host.port))
    target = f"{host.user}@{host.name}" if host.user else host.name
    remote = f"exec {shlex.quote(python)} -c {shlex.quote(program)}"
    return Watched(host, [*ssh, *QUIET, *port, "--", target, remote], python, folder, environment or {})


def tied(host: Host) -> Watched:
    """This machine, for what is to end with this process, however it ends."""
    return Watched(host, [sys.executable, watch.__file__])


def end_all(processes: Sequence[subprocess.Popen[Any]]) -> None:
    """Ask processes, and all that they started, to end; end those that do not; wait for their last words.

    What ended in peace may have left something running on purpose, and is not looked at.
    """
    those = [process for process in processes if process.poll() != 0]
    for process in those:
        ask(process)
    deadline = time.monotonic() + GRACE
    try:
        for process in those:
            # On another machine the grace begins when the request comes there.
            extra = GRACE if on_a_string(process) else 0.0
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline + extra - time.monotonic()))
    finally:
        for process in those:
            signal_group(process, signal.SIGKILL)
            process.wait()
        for process in processes:
            LEASH.let_go(process.pid)
            for thread in process.pumps if isinstance(process, Piped) else ():
                thread.join(1.0)


def ask(process: subprocess.Popen[Any]) -> None:
    if on_a_string(process):
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
    else:
        signal_group(process, signal.SIGTERM)


def on_a_string(process: subprocess.Popen[Any]) -> bool:
    """Whether it lives as long as its stdin: what ``watch`` runs."""
    return isinstance(process, Piped) and process.stdin is not None


def signal_group(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """To the group that it leads, also when it has ended; to the process alone where it leads none."""
    if isinstance(process, Leader):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    else:
        process.send_signal(number)


def new_lines() -> Lines:
    return queue.SimpleQueue()


def pump(stream: IO[bytes] | None, label: str, into: Any, first: Lines | None = None) -> threading.Thread:
    """Print the lines of a process with its label before them, in a thread; ``first`` takes the first one."""
    assert stream is not None

    def lines() -> None:
        with stream:
            if first is not None:
                first.put(stream.readline().decode(errors="replace"))
            for line in stream:
                into.write(f"[{label}] {line.decode(errors='replace').rstrip()}\n")
                into.flush()

    thread = threading.Thread(target=lines, name=f"gradwire-{label}", daemon=True)
    thread.start()
    return thread
