"""The lab itself: it is made at once, and taken away when it is closed or its maker has ended."""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import subprocess
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gradwire.errors import is_int, require
from gradwire_lab.netlab import _watchdog
from gradwire_lab.netlab.delay import DelayLine, has_netem
from gradwire_lab.netlab.link import Link
from gradwire_lab.netlab.names import INTERFACE, MOST_WORKERS, LabNames
from gradwire_lab.netlab.system import NetlabError, counters, last_line, require_system, run, settle, start_program

__all__ = ["LabTraffic", "Netlab", "lab_for", "remove_leftovers"]


@dataclass(frozen=True)
class LabTraffic:
    """Bytes of a worker's interface so far: whole frames, the headers of a segmented packet counted once."""

    sent: int
    received: int


class Netlab:
    """Network namespaces for ``workers`` workers, joined by a bridge, every port shaped in both directions.

    Use it as a context manager. What dead owners left is removed first; should this process be killed, another one
    that watches it takes the lab away.

    Args:
        workers: 2 to 250.
        rate: rate of each link, such as ``100mbit``, ``1gbit`` or ``none``.
        delay: delay from one worker to another, such as ``1ms``: by the kernel's netem, or by a process of our own.
        congestion: TCP's control, one of those that the kernel allows; None: as on this machine. It is in the results.
        keep: the lab outlives this process, until ``gradwire netlab down``.

    Raises:
        ConfigError: a value that cannot be, not root, no iproute2.
        NetlabError: the kernel refused a part.
    """

    def __init__(
        self,
        workers: int = 4,
        rate: str = "1gbit",
        delay: str = "0ms",
        *,
        congestion: str | None = None,
        keep: bool = False,
    ) -> None:
        require(is_int(workers, 2, MOST_WORKERS), "workers", f"an integer in [2, {MOST_WORKERS}]", workers)
        self.link = Link.parse(rate, delay).in_lab()
        require_system()
        remove_leftovers()
        self.names = LabNames(secrets.token_hex(3), workers)
        self.congestion = congestion
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._delay_line: DelayLine | None = None
        self._owner: int | None = os.getpid()
        self._started: weakref.WeakSet[subprocess.Popen[Any]] = weakref.WeakSet()
        try:
            self._record()
            self._watchdog = start_watchdog(self.names.id)
            self._make()
            self._owner = None if keep else self._owner
            self._record()
        except OSError as error:
            self.close()
            raise NetlabError(f"this system does not let a lab be made: {error}") from None
        except BaseException:
            self.close()
            raise
        if keep:
            self._dismiss()

    @property
    def workers(self) -> int:
        """The number of workers."""
        return self.names.workers

    def shape(self, rate: str, delay: str = "0ms") -> None:
        """Give all links another rate and delay.

        Raises:
            ConfigError: the text is not of the form of a rate or a delay, or no lab has such a rate.
            NetlabError: the kernel refused it.
        """
        self.link = Link.parse(rate, delay).in_lab()
        for namespace, device, _ in self._ports():
            with suppress(NetlabError):  # It has none, if it was not shaped.
                run(["tc", "-n", namespace, "qdisc", "delete", "dev", device, "root"])
        self._shape()
        self._record()

    def traffic(self) -> list[LabTraffic]:
        """The bytes that each worker's interface has sent and received since the lab was made.

        Raises:
            NetlabError: the process that delays frames has ended.
        """
        self._check_delay()
        return traffic_of(self.names)

    def popen(
        self, rank: int, command: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a process on a worker with the environment that ``torch.distributed`` needs (``RANK``, ``MASTER_ADDR``,
        ...).

        Args:
            rank: rank of the worker.
            command: command and its arguments.
            env: more variables, on top of this process's and the worker's.
            options: further arguments of ``subprocess.Popen``.

        Raises:
            ConfigError: no such worker.
            NetlabError: the process that delays frames has ended.
        """
        self._check_delay()
        require(is_int(rank, 0, self.workers - 1), "rank", f"in [0, {self.workers - 1}]", rank)
        told = {**os.environ, **self.names.environment(rank), **(env or {})}
        # As torchrun: a number of threads that the user has set stays.
        told["OMP_NUM_THREADS"] = (env or {}).get("OMP_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS", "1")
        process = subprocess.Popen(["ip", "netns", "exec", self.names.worker(rank), *command], env=told, **options)
        self._started.add(process)
        return process

    def run(
        self, command: Sequence[str], *, timeout: float = 60.0, env: Mapping[str, str] | None = None
    ) -> list[subprocess.CompletedProcess[str]]:
        """Run the same command on every worker until all have ended; return their outputs in the order of ranks.

        Args:
            command: command and its arguments.
            timeout: seconds for all of them together.
            env: environment, as for ``popen``.

        Raises:
            NetlabError: one failed, or they did not end in time; none of them runs on then.
        """
        options: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "process_group": 0,
        }
        running = [self.popen(rank, command, env=env, **options) for rank in range(self.workers)]
        pool = ThreadPoolExecutor(self.workers)
        outputs = {pool.submit(process.communicate): rank for rank, process in enumerate(running)}
        try:
            for output in as_completed(outputs, timeout):
                rank, said = outputs[output], last_line(output.result()[1])
                code = running[rank].returncode
                if code:
                    self._check_delay()
                    raise NetlabError(f"worker {rank} ended with exit code {code}: {said}")
        except TimeoutError:
            self._check_delay()
            raise NetlabError(f"{command[0]} did not end on all workers within {timeout:g} s") from None
        finally:
            end(running)
            pool.shutdown()
        return [subprocess.CompletedProcess(command, 0, *output.result()) for output in outputs]

    def close(self) -> None:
        """End the processes inside, and take the lab away; a second call does nothing."""
        # One that was started just now may not be inside yet, and would run on there when the namespace has no name.
        for process in self._started:
            if process.poll() is None:
                process.kill()
        if self._delay_line is not None:
            self._delay_line.end()
        _watchdog.remove(self.names.id)
        self._dismiss()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_delay(self) -> None:
        if self._delay_line is not None:
            self._delay_line.check()

    def _record(self) -> None:
        born = None if self._owner is None else _watchdog.born(self._owner)
        facts = {"workers": self.workers, **asdict(self.link), "congestion": self.congestion}
        _watchdog.record(self.names.id, {"owner": self._owner, "born": born, **facts})

    def _dismiss(self) -> None:
        """Dismiss the watchdog of a lab that has been taken away."""
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.wait()

    def _make(self) -> None:
        names, ranks = self.names, range(self.workers)
        ends = [(f"{INTERFACE} netns {names.worker(rank)}", f"{names.port(rank)} netns {names.hub}") for rank in ranks]
        run(
            ["ip", "-batch", "-"],
            [
                *(f"netns add {namespace}" for namespace in names.all),
                *(f"link add {near} type veth peer name {far}" for near, far in ends),
            ],
        )
        for namespace in names.all:
            self.congestion = settle(namespace, self.congestion)
        run(
            ["ip", "-n", names.hub, "-batch", "-"],
            [
                "link add br0 type bridge",
                "link set br0 up",
                *(f"link set {names.port(rank)} master br0 up" for rank in ranks),
            ],
        )
        for rank in ranks:
            self._settle_worker(rank)
        self._shape()

    def _settle_worker(self, rank: int) -> None:
        address, namespace = self.names.address(rank), self.names.worker(rank)
        lines = ["link set lo up", f"address add {address}/24 dev {INTERFACE}", f"link set {INTERFACE} up"]
        run(["ip", "-n", namespace, "-batch", "-"], lines)
        # Programs that look their own host name up, as Gloo does, must find this address and not another machine's.
        hosts = Path(_watchdog.HOSTS, namespace, "hosts")
        hosts.parent.mkdir(parents=True)
        # torch asks for the names of its peers, with the addresses of IPv6 for those of IPv4, and warns of one without.
        peers = "".join(f"::ffff:{self.names.address(each)} worker-{each}\n" for each in range(self.workers))
        hosts.write_text(f"127.0.0.1 localhost\n{address} {os.uname().nodename}\n{peers}", encoding="utf-8")

    def _ports(self) -> Iterator[tuple[str, str, bool]]:
        """The two ends of every cable: namespace, device, and whether it is the worker's end."""
        for rank in range(self.workers):
            yield self.names.worker(rank), INTERFACE, True
            yield self.names.hub, self.names.port(rank), False

    def _shape(self) -> None:
        if self._delay_line is not None:
            self._delay_line.close()
            self._delay_line = None
        netem = not self.link.delay or has_netem(self.names.hub)
        if not netem:
            self._delay_line = DelayLine(self.names, self.link.delay)
        for namespace, device, near in self._ports():
            lines = self.link.shaper(device, near=near, netem=netem)
            if lines:
                run(["tc", "-n", namespace, "-batch", "-"], lines)


def lab_for(workers: int, link: Link) -> AbstractContextManager[Netlab | None]:
    """Make a lab with these links; None if they are the loopback.

    Raises:
        ConfigError, NetlabError: the lab cannot be made, as for ``Netlab``.
    """
    if link == Link():
        return nullcontext()
    return Netlab(workers, str(replace(link, delay=0.0)), f"{1e6 * link.delay:.0f}us")


def traffic_of(names: LabNames) -> list[LabTraffic]:
    """Counters of the interfaces of a lab's workers; empty for a lab that is incomplete or being taken away."""
    found = []
    for rank in range(names.workers):
        with suppress(NetlabError, KeyError):
            received, sent = counters(names.worker(rank))[INTERFACE]
            found.append(LabTraffic(sent, received))
    return found


def remove_leftovers() -> list[str]:
    """Take away the labs whose owners have ended without doing so, and return their ids."""
    found = _watchdog.leftovers()
    for lab in found:
        _watchdog.remove(lab)
    return found


def start_watchdog(lab: str) -> subprocess.Popen[bytes]:
    """Start a process that takes the lab away as soon as this process has ended, and that ignores signals meant for
    this one.
    """
    found = os.pidfd_open(os.getpid())
    # Where standard streams are closed it may have the number of one, which the process would lose to its own.
    owner = fcntl.fcntl(found, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(found)
    try:
        return start_program(
            _watchdog.__file__,
            lab,
            str(owner),
            pass_fds=(owner,),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    finally:
        os.close(owner)


def end(running: Sequence[subprocess.Popen[Any]]) -> None:
    """End the processes that still run, each the leader of a process group, with all that they have started."""
    for process in running:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
