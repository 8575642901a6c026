"""Requests of the lab to the system: the commands of iproute2, and entering a network namespace."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradwire.errors import ConfigError, GradwireError
from gradwire_lab.netlab._watchdog import NAMESPACES

__all__ = [
    "NetlabError",
    "counters",
    "counters_in",
    "enter",
    "inside",
    "last_line",
    "own_counters",
    "require_system",
    "run",
    "settle",
    "start_program",
    "tune",
]

_DEADLINE = 30.0
_CLONE_NEWNET = 0x40000000


class NetlabError(GradwireError):
    """A part of the network, or a transfer over it, was refused by the machine or failed."""


def require_system() -> None:
    """Raise unless this process can make network namespaces.

    Raises:
        ConfigError: the system is not Linux, the user is not root, or iproute2 is not installed.
    """
    if sys.platform != "linux":
        raise ConfigError(f"netlab needs Linux, for its network namespaces, and this is {sys.platform}")
    if os.geteuid() != 0:
        raise ConfigError(f"netlab must be run as root, to make network namespaces, got user {os.geteuid()}: use sudo")
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        raise ConfigError(f"netlab needs {' and '.join(missing)}, which iproute2 brings: install that package")


def run(command: Sequence[str], lines: Sequence[str] = ()) -> str:
    """Run a command that is given ``lines`` to read, and return its output.

    Raises:
        NetlabError: the command failed; the message has its error output.
    """
    text = "".join(f"{line}\n" for line in lines)
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_DEADLINE, check=False)
    except subprocess.TimeoutExpired:
        raise NetlabError(f"{' '.join(command)} did not end within {_DEADLINE:g} s") from None
    if done.returncode:
        raise NetlabError(f"{' '.join(command)} failed: {' '.join(done.stderr.split())}")
    return done.stdout


def start_program(file: str, *arguments: str, namespace: str | None = None, **options: Any) -> subprocess.Popen[Any]:
    """Start a file that imports the standard library alone as a process of its own, which is there within
    milliseconds, and which signals that are meant for this process do not reach.

    Args:
        file: path of the file.
        arguments: arguments of the program.
        namespace: network namespace in which it runs; None: this process's.
        options: further arguments of ``subprocess.Popen``.

    Raises:
        NetlabError: the process cannot be started.
    """
    within = [] if namespace is None else ["ip", "netns", "exec", namespace]
    command = [*within, sys.executable, "-I", "-S", file, *arguments]
    try:
        return subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, cwd="/", **options)
    except OSError as error:
        raise NetlabError(f"{Path(file).name} cannot be started: {error}") from None


def last_line(text: str) -> str:
    r"""The last line of what a process said.

    >>> last_line("a line\nand another\n"), last_line("")
    ('and another', 'it said nothing')
    """
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def enter(namespace: str) -> None:
    """Move this thread, and threads that it will start, into a network namespace; open sockets stay in the old one.

    Raises:
        NetlabError: there is no such namespace, or this process may not enter it.
    """
    try:
        _enter(str(NAMESPACES / namespace))
    except OSError as error:
        raise NetlabError(f"the network namespace {namespace} cannot be entered: {error.strerror}") from None


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Enter a network namespace with this thread until the block ends; a socket made there belongs to it for good."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(namespace)
        yield
    finally:
        _set(home)
        os.close(home)


def _enter(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _set(handle)
    finally:
        os.close(handle)


def _set(handle: int) -> None:
    # os.setns came with Python 3.12.
    if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def settle(namespace: str, congestion: str | None) -> str:
    """Disable IPv6, whose packets would be counted, set TCP's congestion control, and return the one in force.

    Raises:
        NetlabError: the kernel does not let a namespace have this congestion control.
    """
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text(encoding="utf-8").split()
    if congestion not in (None, *allowed):
        raise NetlabError(
            f"congestion must be one of {', '.join(allowed)}, got {congestion!r}: namespaces may use what "
            "net.ipv4.tcp_allowed_congestion_control allows"
        )
    with inside(namespace):
        for scope in ("all", "default"):
            tune(f"ipv6/conf/{scope}/disable_ipv6", "1")
        if congestion is not None:
            tune("ipv4/tcp_congestion_control", congestion)
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="utf-8").strip()


def tune(key: str, value: str) -> None:
    """Set a sysctl of the network namespace that this thread is in; one that the kernel does not have is skipped."""
    path = Path("/proc/sys/net") / key
    if path.exists():
        path.write_text(value, encoding="utf-8")


def counters(namespace: str) -> dict[str, tuple[int, int]]:
    """Read the bytes received and sent so far by each interface of a namespace, as the kernel counts them."""
    with inside(namespace):
        return own_counters()


def own_counters() -> dict[str, tuple[int, int]]:
    """Read the counters of the namespace that this thread is in, as ``counters`` does."""
    return counters_in(Path("/proc/thread-self/net/dev").read_text(encoding="utf-8"))


def counters_in(text: str) -> dict[str, tuple[int, int]]:
    """Parse the content of the kernel's file ``net/dev``."""
    lines = text.splitlines()[2:]
    rows = ((name.strip(), figures.split()) for name, _, figures in (line.partition(":") for line in lines))
    return {name: (int(figures[0]), int(figures[8])) for name, figures in rows}
