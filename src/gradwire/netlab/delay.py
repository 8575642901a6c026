"""Delay of a lab's links: by the kernel's ``netem``, or where it has none, by a process that holds frames back."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterable, Sequence

from gradwire.netlab import _delay_line
from gradwire.netlab.names import LabNames
from gradwire.netlab.system import NetlabError, run

__all__ = ["DelayLine", "has_netem"]

_DEADLINE = 10.0

_QUEUE = 10_000
"""Frames that the bridge's end of a device holds while the process does not run."""


def has_netem(namespace: str) -> bool:
    """Find out whether the kernel can delay what leaves an interface, by delaying the loopback for a moment."""
    try:
        run(["tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])
    except NetlabError:
        return False
    run(["tc", "-n", namespace, "qdisc", "delete", "dev", "lo", "root"])
    return True


class DelayLine:
    """A process between the ports of a lab and its bridge that holds back what each worker sends.

    It runs in the namespace of the bridge, and so ends with the lab at the latest.

    Args:
        names: names of the lab.
        delay: seconds, > 0.

    Raises:
        NetlabError: the kernel has neither ``netem`` nor TAP devices.
    """

    def __init__(self, names: LabNames, delay: float) -> None:
        self._names = names
        self._ports = {names.port(rank): f"late{rank}" for rank in range(names.workers)}
        self._bridge(f"link set {port} nomaster promisc on" for port in self._ports)
        pairs = [f"{port}:{device}" for port, device in self._ports.items()]
        self._process = _start(names.hub, [_delay_line.__file__, f"{delay:.6f}", *pairs])
        try:
            self._wait()
            self._bridge(f"link set {late} txqueuelen {_QUEUE} master br0 up" for late in self._ports.values())
        except BaseException:
            self.end()
            raise

    def close(self) -> None:
        """End the process, and join the ports to the bridge again; what it held is lost, and TCP sends it again."""
        self.end()
        self._bridge(f"link set {port} promisc off master br0" for port in self._ports)

    def end(self) -> None:
        """End the process; the workers do not reach each other any more."""
        self._process.kill()
        self._process.communicate()

    def _bridge(self, lines: Iterable[str]) -> None:
        run(["ip", "-n", self._names.hub, "-batch", "-"], list(lines))

    def _wait(self) -> None:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _DEADLINE)
        if ready and self._process.stdout.readline():
            return
        self._process.kill()  # It may be there and silent.
        said = self._process.communicate()[1].strip().splitlines()
        raise NetlabError(
            "a delay needs the kernel's netem (sch_netem) or its TAP devices (/dev/net/tun), and this kernel has "
            f"neither: leave the delay out. {said[-1] if said else 'The process that holds frames did not begin.'}"
        )


def _start(namespace: str, command: Sequence[str]) -> subprocess.Popen[str]:
    """Start a program of the standard library in a namespace; signals meant for this process do not reach it."""
    return subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, "-I", "-S", *command],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )
