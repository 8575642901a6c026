"""Machines, and processes started there: on this one, or over ssh on those of a hosts file.

A hosts file lists them, one in each line; what follows a # is not read.

    [USER@]HOST[:PORT] [slots=N] [address=IP]      # the port is ssh's

Invariants:
    A process is a ``Popen`` here, on whatever machine it runs, and ``end_all`` ends it together with all that it
    started.
"""

from __future__ import annotations

import ipaddress
import json
import os
import queue
import re
import shlex
import signal
import socket
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

from gradwire.errors import ConfigError, require
from gradwire.kvstore.launch import agent
from gradwire.kvstore.launch.reaper import GRACE, Reaper

__all__ = [
    "LISTENING",
    "Host",
    "Lines",
    "LocalMachine",
    "Machine",
    "Piped",
    "check_reachable",
    "end_all",
    "local_agent",
    "over_ssh",
    "placed",
    "read_hosts",
]

Lines: TypeAlias = queue.SimpleQueue[str]

LISTENING = "listening on "
"""Beginning of the line in which a server says its endpoint."""

BEAT = 5.0
"""Seconds between two signs of life to an agent on another machine."""

SILENCE = 30.0
"""Seconds without a sign of life after which such an agent ends what it runs."""

QUIET = (
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=15",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
)
"""No terminal, no questions, and no waiting for a machine that is gone."""

REAPER = Reaper()
"""The reaper of what this process started on this machine."""


LINE = re.compile(r"(?:(?P<user>[\w.-]+)@)?(?P<name>\w[\w.-]*|\[[0-9a-fA-F:]+\])(?::(?P<port>\d{1,5}))?")


class Leader(subprocess.Popen[bytes]):
    """A process that leads a process group, to which all that it starts belongs."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        super().__init__(command, start_new_session=True, **options)


class Piped(Leader):
    """A process whose output is passed on."""

    pumps: Sequence[threading.Thread] = ()


class Machine(ABC):
    """A machine on which processes run."""

    python: str = sys.executable

    @property
    @abstractmethod
    def address(self) -> str:
        """The IP address at which the machine's servers listen."""

    @abstractmethod
    def start(self, command: Sequence[str], environment: Mapping[str, str], label: str) -> subprocess.Popen[bytes]:
        """Start a worker."""

    @abstractmethod
    def serve(self, command: Sequence[str], label: str) -> tuple[Piped, Lines]:
        """Start a server; the line that says where it listens is put into the queue, or the last one if none does."""


class LocalMachine(Machine):
    """The machine of this process. Workers share its terminal."""

    @property
    def address(self) -> str:
        return "127.0.0.1"

    def start(self, command: Sequence[str], environment: Mapping[str, str], label: str) -> subprocess.Popen[bytes]:
        try:
            process = Leader(command, env={**os.environ, **environment})
        except OSError as error:
            raise ConfigError(f"{label} cannot be started: {error}") from None
        # This process may be killed, and could end nothing then.
        REAPER.hold(process.pid)
        return process

    def serve(self, command: Sequence[str], label: str) -> tuple[Piped, Lines]:
        process, announced = Piped(command, stdout=subprocess.PIPE), Lines()
        REAPER.hold(process.pid)
        process.pumps = [pump(process.stdout, label, sys.stdout, announced)]
        return process, announced


@dataclass(frozen=True, eq=False)
class AgentMachine(Machine):
    """A machine where processes end when the one that started them ends: they run under ``agent``.

    Args:
        host: name of the machine.
        launcher: the command that runs ``agent`` there.
        python: path of the interpreter there.
        folder: folder there, in which processes run.
        environment: variables that processes get on top of those that they find there.
        silence: seconds without a sign of life after which the agent ends what it runs; None: it waits for the end of
            stdin alone, as an agent on this machine may, where no connection can be lost.
    """

    host: Host
    launcher: Sequence[str]
    python: str = sys.executable
    folder: str = "."
    environment: Mapping[str, str] = field(default_factory=dict)
    silence: float | None = None

    @property
    def address(self) -> str:
        return self.host.listen()

    def start(self, command: Sequence[str], environment: Mapping[str, str], label: str) -> subprocess.Popen[bytes]:
        return self._start(command, environment, label, None)

    def serve(self, command: Sequence[str], label: str) -> tuple[Piped, Lines]:
        announced = Lines()
        return self._start(command, {}, label, announced), announced

    def _start(
        self, command: Sequence[str], environment: Mapping[str, str], label: str, announced: Lines | None
    ) -> Piped:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = Piped(self.launcher, **pipes)
        process.pumps = [pump(process.stdout, label, sys.stdout, announced), pump(process.stderr, label, sys.stderr)]
        told = {
            "command": list(command),
            "environment": {**self.environment, **environment},
            "folder": self.folder,
            "grace": GRACE,
            "silence": self.silence,
        }
        assert process.stdin is not None
        # If the write fails, ssh prints the reason on stderr and ends.
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(told).encode() + b"\n")
            process.stdin.flush()
        if self.silence is not None:
            threading.Thread(target=beat, args=(process.stdin,), name=f"gradwire-beat-{label}", daemon=True).start()
        return process


def beat(stdin: IO[bytes]) -> None:
    """Write a sign of life to an agent now and then, until its stdin is closed here or there."""
    with suppress(OSError, ValueError):
        while True:
            stdin.write(b"\n")
            stdin.flush()
            time.sleep(BEAT)


def over_ssh(
    host: Host,
    ssh: Sequence[str] = ("ssh",),
    python: str = sys.executable,
    folder: str = ".",
    environment: Mapping[str, str] | None = None,
) -> AgentMachine:
    """Make a machine that is reached over ssh.

    Args:
        ssh: the command that gets there, with options if need be.
        python: path of the interpreter there.
        folder: folder there.
        environment: variables of all processes there.
    """
    program = Path(agent.__file__).read_text(encoding="utf-8")
    port = () if host.port is None else ("-p", str(host.port))
    target = f"{host.user}@{host.name}" if host.user else host.name
    remote = f"exec {shlex.quote(python)} -c {shlex.quote(program)}"
    launcher = [*ssh, *QUIET, *port, "--", target, remote]
    return AgentMachine(host, launcher, python, folder, environment or {}, SILENCE)


def local_agent(host: Host) -> AgentMachine:
    """Make this machine with an agent, for processes that must end with this one, however it ends."""
    return AgentMachine(host, [sys.executable, agent.__file__])


def end_all(processes: Sequence[subprocess.Popen[Any]]) -> None:
    """Ask processes, and all that they started, to end; kill those that do not; wait for the rest of their output.

    What ended in peace may have left something running on purpose, and is not looked at.
    """
    those = [process for process in processes if process.poll() != 0]
    for process in those:
        ask(process)
    deadline = time.monotonic() + GRACE
    try:
        for process in those:
            # The grace on another machine begins when the request comes there.
            extra = GRACE if lives_by_stdin(process) else 0.0
            with suppress(subprocess.TimeoutExpired):
                # One deadline for all: they end at the same time.
                process.wait(max(0.0, deadline + extra - time.monotonic()))
    finally:
        for process in those:
            # Also where the process has ended: what it has started may run on.
            signal_group(process, signal.SIGKILL)
            process.wait()
        for process in processes:
            # The number may soon be that of another process.
            REAPER.let_go(process.pid)
            for thread in process.pumps if isinstance(process, Piped) else ():
                # A grandchild that was not killed may hold the pipe open, and must not keep this process.
                thread.join(1.0)


def ask(process: subprocess.Popen[Any]) -> None:
    if lives_by_stdin(process):
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            # Its agent ends what it runs when its stdin ends; a signal would reach ssh alone.
            process.stdin.close()
    else:
        signal_group(process, signal.SIGTERM)


def lives_by_stdin(process: subprocess.Popen[Any]) -> bool:
    """Return whether a process lives only as long as its stdin, as all that ``agent`` runs."""
    return isinstance(process, Piped) and process.stdin is not None


def signal_group(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """Send a signal to the group that a process leads, even if it has ended; to the process alone if it leads none."""
    if isinstance(process, Leader):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    else:
        process.send_signal(number)


def pump(stream: IO[bytes] | None, label: str, into: Any, announced: Lines | None = None) -> threading.Thread:
    """Print the lines of a process with its label before them, in a thread.

    Args:
        into: file in which the lines are written.
        announced: queue for the first line that says where a server listens, which is not printed; for the last line
            if none does, or an empty one. None: the process is no server.
    """
    assert stream is not None

    def lines() -> None:
        waiting, text = announced, ""
        try:
            with stream:
                for line in stream:
                    text = line.decode(errors="replace").rstrip()
                    # Others may come before it: a login shell and the start of Python may print, too.
                    if waiting is not None and text.startswith(LISTENING):
                        waiting.put(text)
                        waiting = None
                    else:
                        into.write(f"[{label}] {text}\n")
                        into.flush()
        finally:
            if waiting is not None:
                waiting.put(text)

    thread = threading.Thread(target=lines, name=f"gradwire-{label}", daemon=True)
    thread.start()
    return thread


@dataclass(frozen=True)
class Host:
    """A line of a hosts file: a machine and its slots.

    Args:
        name: host name, as ssh takes it.
        user: user name for ssh; empty: ssh's own choice.
        port: port of the machine's sshd; None: ssh's own choice.
        slots: workers that it takes.
        address: IPv4 address at which the other machines reach its servers; empty: what its name resolves to.
    """

    name: str
    user: str = ""
    port: int | None = None
    slots: int = 1
    address: str = ""

    def listen(self) -> str:
        """The IP address at which the machine's servers listen.

        Raises:
            ConfigError: only ssh knows the machine's name.
        """
        if self.address:
            return self.address
        try:
            return str(socket.getaddrinfo(self.name, None, socket.AF_INET)[0][4][0])
        except OSError:
            remedy = "write address=IP after it in the file"
            raise ConfigError(f"host {self.name!r} resolves to no IPv4 address: {remedy}") from None


def read_hosts(path: str | Path) -> list[Host]:
    """Read the machines of a file; text after a # is skipped.

    Raises:
        ConfigError: no such file, no machine in it, or a line of another form.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--host-file {path} cannot be read: {error}") from None
    texts = [(number, line.partition("#")[0].split()) for number, line in enumerate(lines, 1)]
    hosts = [parsed(words, f"{path}, line {number}") for number, words in texts if words]
    require(bool(hosts), "--host-file", "a file with at least one host", str(path))
    return hosts


def parsed(words: Sequence[str], where: str) -> Host:
    """Parse one line of a hosts file.

    >>> parsed(["ada@node1:2222", "slots=4"], "hosts, line 1")
    Host(name='node1', user='ada', port=2222, slots=4, address='')

    Raises:
        ConfigError: another form.
    """
    found = LINE.fullmatch(words[0])
    options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    known = options.keys() <= {"slots", "address"} and len(options) == len(words) - 1
    if found is None or not known:
        raise ConfigError(f"{where} must be [USER@]HOST[:PORT] [slots=N] [address=IP], got {' '.join(words)!r}")
    slots, address, port = options.get("slots", "1"), options.get("address", ""), int(found["port"] or 22)
    require(slots.isdecimal() and int(slots) > 0, f"slots in {where}", "an integer >= 1", slots)
    require(0 < port < 65536, f"the port in {where}", "in [1, 65535]", port)
    try:
        address = str(ipaddress.IPv4Address(address)) if address else ""
    except ValueError:
        raise ConfigError(f"address in {where} must be an IPv4 address, got {address!r}") from None
    return Host(found["name"].strip("[]"), found["user"] or "", port if found["port"] else None, int(slots), address)


def placed(hosts: Sequence[Host], workers: int) -> list[Host]:
    """Assign a machine to each worker: the slots of the first are filled, then those of the next.

    Raises:
        ConfigError: fewer slots than workers.
    """
    slots = [host for host in hosts for _ in range(host.slots)]
    if len(slots) < workers:
        raise ConfigError(f"--workers must be at most {len(slots)}, the slots of the host file, got {workers}")
    return slots[:workers]


def check_reachable(hosts: Sequence[Host], servers: int) -> None:
    """Refuse a server at an address of loopback where workers run on another machine, too.

    Args:
        hosts: host of each worker, as from ``placed``.
        servers: number of servers, which these hosts take in turn.

    Raises:
        ConfigError: such a host, or a server's host that only ssh knows.
    """
    for host in list(dict.fromkeys(hosts))[:servers]:
        address = host.listen()
        if is_loopback(host) and not all(is_loopback(each) for each in hosts):
            text = f"host {host.name!r} must have an address at which the other hosts reach it, got {address}"
            raise ConfigError(f"{text}: write address=IP after it in the file")


def is_loopback(host: Host) -> bool:
    try:
        return ipaddress.ip_address(host.listen()).is_loopback
    except ConfigError:
        # Only ssh knows its name, and does not need it for this machine.
        return False
