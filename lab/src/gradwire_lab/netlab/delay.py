"""Delay of a lab's links: by the kernel's ``netem``, or where it has none, by a process that holds frames back."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Iterable
from contextlib import suppress

from gradwire_lab.netlab import _delay_line
from gradwire_lab.netlab.names import LabNames
from gradwire_lab.netlab.system import NetlabError, last_line, run, start_program

__all__ = ["DelayLine", "has_netem"]

_DEADLINE = 10.0

_UNKNOWN = "unknown", "rtnetlink answers: no such file", "not supported"
"""Answers of a ``tc`` or of a kernel that does not know ``netem``."""

_QUEUE = 10_000
"""Frames that the bridge's end of a device holds while the process does not run."""


def has_netem(namespace: str) -> bool:
    """Find out whether the kernel can delay what leaves an interface, by delaying the loopback for a moment.

    Raises:
        NetlabError: ``tc`` failed for another reason.
    """
    try:
        run(["tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])
    except NetlabError as error:
        if any(words in str(error).lower() for words in _UNKNOWN):
            return False
        raise
    run(["tc", "-n", namespace, "qdisc", "delete", "dev", "lo", "root"])
    return True


class DelayLine:
    """A process between the ports of a lab and its bridge that holds back what each worker sends.

    It runs in the namespace of the bridge, and so ends with the lab at the latest.

    Args:
        names: names of the lab.
        delay: seconds, > 0.

    Raises:
        NetlabError: the kernel has neither ``netem`` nor TAP devices, or the process did not begin; the ports are as
            they were.
    """

    def __init__(self, names: LabNames, delay: float) -> None:
        self._names = names
        self._ports = {names.port(rank): f"late{rank}" for rank in range(names.workers)}
        self._process: subprocess.Popen[str] | None = None
        pairs = [f"{port}:{device}" for port, device in self._ports.items()]
        try:
            self._bridge(f"link set {port} nomaster promisc on" for port in self._ports)
            self._process = start_program(
                _delay_line.__file__,
                f"{delay:.6f}",
                *pairs,
                namespace=names.hub,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self._wait(self._process)
            self._bridge(f"link set {late} txqueuelen {_QUEUE} master br0 up" for late in self._ports.values())
        except BaseException:
            with suppress(NetlabError):  # What went wrong first is what is told.
                self.close()
            raise

    def check(self) -> None:
        """Raise if the process has ended, without which the workers do not reach each other.

        Raises:
            NetlabError: the process has ended; the message has its last words.
        """
        if self._process is not None and self._process.poll() is not None:
            raise NetlabError(f"the process that delays frames ended: {last_words(self._process)}")

    def close(self) -> None:
        """End the process, and join the ports to the bridge again; what it held is lost, and TCP sends it again."""
        self.end()
        self._bridge(f"link set {port} promisc off master br0" for port in self._ports)

    def end(self) -> None:
        """End the process; the workers do not reach each other any more."""
        if self._process is not None:
            self._process.kill()
            last_words(self._process)
            self._process = None

    def _bridge(self, lines: Iterable[str]) -> None:
        run(["ip", "-n", self._names.hub, "-batch", "-"], list(lines))

    def _wait(self, process: subprocess.Popen[str]) -> None:
        """Wait until the process has its devices."""
        assert process.stdout is not None
        ready = select.poll()
        ready.register(process.stdout, select.POLLIN)
        if ready.poll(1e3 * _DEADLINE) and process.stdout.readline():
            return
        process.kill()  # It may be there and silent.
        said = last_words(process)
        if "/dev/net/tun" in said:
            raise NetlabError(
                "a delay needs the kernel's netem (sch_netem) or its TAP devices (/dev/net/tun), and this kernel has "
                f"neither ({said}): leave the delay out"
            )
        raise NetlabError(f"the process that delays frames did not begin within {_DEADLINE:g} s: {said}")


def last_words(process: subprocess.Popen[str]) -> str:
    """Wait for the end of a process, and return how it ended, and the last line of its errors."""
    assert process.stderr is not None
    said = "" if process.stderr.closed else process.communicate()[1]
    return f"exit code {process.wait()}, {last_line(said)}"
