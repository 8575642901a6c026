"""Common part of all simulations: they start participants, let faults happen to them, and note what did not hold."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gradwire.errors import GradwireError
from gradwire.kvstore.server.core import ServerCore
from gradwire_lab.simulation.case import NEVER, Fault, RunOutcome, SimulatedCase
from gradwire_lab.simulation.disk import Files
from gradwire_lab.simulation.machine import SimulatedMachine
from gradwire_lab.simulation.network import Network
from gradwire_lab.simulation.scheduler import Scheduler

__all__ = ["Participant", "Simulation"]


@dataclass
class Participant:
    """A server, a place or a worker, whose processes follow each other."""

    name: str
    machine: SimulatedMachine
    files: Files
    away: list[list[float]] = field(default_factory=list)
    """Times in which it did nothing: from, to."""
    state: str = "runs"
    error: str = ""
    restarts: bool = False
    starts: int = 0
    core: ServerCore | None = None
    """The state of a server of the store."""
    forgets: bool = False
    """True of such a server that begins with an older file, or with none."""
    first: dict[str, int] = field(default_factory=dict)
    """Steps of each key that were made before a worker of the store came."""

    @property
    def index(self) -> int:
        """The number in its name, of a worker its rank."""
        return int(self.name.rpartition("-")[2])

    def absent(self, now: float) -> float:
        """Return the longest time until now in which it did nothing; short ones that follow each other count as one."""
        return max((min(end, now) - begin for begin, end in self.absences()), default=0.0)

    def absences(self) -> list[tuple[float, float]]:
        """List the times in which it did nothing; short ones that follow each other are one."""
        found: list[tuple[float, float]] = []
        for start, stop in sorted(self.away):
            if found and start - found[-1][1] < 3.0:
                start, stop = found[-1][0], max(stop, found.pop()[1])
            found.append((start, stop))
        return found


class Simulation:
    """A run, in which workers run a script; it begins with what they need.

    Args:
        case: case to run.
        others: names of the other participants.
        latency: seconds that a message takes, of which one is drawn.
        log: true: keep all that happens as text.
    """

    patience = 0.0
    """Seconds for which workers may stand still in the end."""

    def __init__(self, case: SimulatedCase, others: Sequence[str], latency: Sequence[float], log: bool) -> None:
        self.case = case
        self.scheduler = Scheduler(str(case.seed))
        self.scheduler.log = [] if log else None
        source = self.scheduler.random
        self.network = Network(self.scheduler, source.choice(latency), source.choice([20, 200]))
        self.violations: list[str] = []
        self.errors = io.StringIO()
        self.seen: dict[tuple[int, int, str], Tensor] = {}
        names = [f"worker-{rank}" for rank in range(case.work.workers)]
        self._busy = set(names)
        self._hooks: dict[str, Callable[[Fault, Participant], None]] = {"stop": self._stop, "jump": self._jump}
        self.members = {name: self._member(name) for name in [*others, *names]}

    def run(self) -> RunOutcome:
        """Run, and check the promises."""
        work = self.case.work
        for name in self.members:
            self.scheduler.after(work.late if name == f"worker-{work.workers - 1}" else 0.0, self._start, name)
        for fault in self.case.faults:
            if not fault.since:
                self.scheduler.after(fault.at, self._strike, fault)
        busy = work.length * work.pace + work.late
        lasting = sum(fault.at + fault.seconds for fault in self.case.faults if fault.seconds < NEVER)
        in_time = False
        with contextlib.redirect_stderr(self.errors), no_last_error():
            try:
                in_time = self.scheduler.run(self._finished, 60.0 + busy + lasting + self.patience)
                self._check_end()
            finally:
                self.scheduler.end()
        if not in_time:
            self._found(f"{', '.join(sorted(self._busy))} did not end until {self.scheduler.now:.0f} s")
        for thread, failure in self.scheduler.failures:
            self._found(f"thread {thread} ended by {type(failure).__name__}: {failure}")
        if "Traceback" in self.errors.getvalue():
            self._found(f"a server met with {self.errors.getvalue().strip().splitlines()[-1]}")
        log = [] if self.scheduler.log is None else self.scheduler.log
        violations = list(dict.fromkeys(self.violations))
        return RunOutcome(self.case, violations, self.scheduler.digest, self.scheduler.now, self.seen, log)

    def _main(self, member: Participant) -> Callable[[], None]:
        """Return what the new process of a participant runs."""
        return functools.partial(self._work, member, member.machine)

    def _script(self, member: Participant, machine: SimulatedMachine) -> None:
        """Run the script of a worker, and note how it ends."""
        raise NotImplementedError

    def _true(self, member: Participant, text: str) -> bool:
        """Return whether an error that a worker gets names something that has happened."""
        raise NotImplementedError

    def _check_end(self) -> None:
        """Check what must hold when all workers have ended."""

    def _member(self, name: str) -> Participant:
        files = Files(self.scheduler.random)
        return Participant(name, SimulatedMachine(self.network, name, files), files)

    def _workers(self) -> list[Participant]:
        return [self.members[f"worker-{rank}"] for rank in range(self.case.work.workers)]

    def _finished(self) -> bool:
        return not self._busy

    def _found(self, text: str) -> None:
        self.scheduler.trace(f"VIOLATION {text}")
        self.violations.append(text)

    def _start(self, name: str) -> None:
        """Start a process of a participant, the first one or another one."""
        member = self.members[name]
        if member.machine.simulated.alive and member.machine.simulated.tasks:
            return
        # A stall may have been noted after the end of the process before.
        for each in (*member.away[-1:], *(each for each in member.away if each[1] == float("inf"))):
            each[1] = min(each[1], self.scheduler.now)
        member.machine = SimulatedMachine(self.network, name, member.files)
        member.restarts = False
        member.starts += 1
        process = member.machine.simulated
        process.on_death.append(functools.partial(self._died, member))
        process.on_stop.append(lambda seconds: member.away.append([self.scheduler.now, self.scheduler.now + seconds]))
        self.scheduler.trace(f"{name} starts")
        self.scheduler.start(process, self._main(member), "main")

    def _died(self, member: Participant) -> None:
        member.away.append([self.scheduler.now, float("inf")])
        member.core = None
        if member.name in self._busy and member.state == "runs" and not member.restarts:
            self._end(member, "killed")

    def _work(self, member: Participant, machine: SimulatedMachine) -> None:
        """Run the script of a worker, and judge the error with which it ends."""
        try:
            self._script(member, machine)
            machine.ended = True
        except GradwireError as error:
            machine.ended = True
            if not machine.simulated.alive:
                # In a process that was killed threads run to their end, without effect: nobody gets this error.
                return
            self.scheduler.trace(f"{member.name} gets {error}")
            self._failed(member, error)
        except Exception as error:
            machine.ended = True
            self._end(member, "failed", str(error))
            self._found(f"{member.name} gets {type(error).__name__}: {error}")
        if member.state == "failed":
            # A store that could not be made has connections, which end with the process.
            machine.simulated.kill()

    def _failed(self, member: Participant, error: GradwireError) -> None:
        """Note that a worker has ended with an error of ours."""
        if not self._true(member, str(error)):
            self._found(f"{member.name} gets an error without a cause: {type(error).__name__}: {error}")
        self._end(member, "failed", str(error))

    def _end(self, member: Participant, state: str, error: str = "") -> None:
        member.state, member.error = state, error
        self._busy.discard(member.name)

    def _strike(self, fault: Fault) -> None:
        member = self.members.get(fault.target.partition("~")[0])
        if member is None or not member.machine.simulated.alive or member.state != "runs":
            return
        self.scheduler.trace(f"fault {fault}")
        self._hooks.get(fault.kind, self._kill)(fault, member)

    def _stop(self, fault: Fault, member: Participant) -> None:
        if fault.count:
            process = member.machine.simulated
            process.pause, process.looks = self.scheduler.now + fault.seconds, fault.count - 1
        else:
            member.machine.simulated.stop(fault.seconds)

    def _jump(self, fault: Fault, member: Participant) -> None:
        member.machine.simulated.ahead += fault.seconds

    def _kill(self, fault: Fault, member: Participant) -> None:
        process = member.machine.simulated
        member.restarts = fault.seconds < NEVER
        process.on_death.append(functools.partial(self._restart, fault, member))
        if fault.kind == "torn":
            process.torn = True
        elif fault.count:
            process.fuse = fault.count
        else:
            process.kill()

    def _restart(self, fault: Fault, member: Participant) -> None:
        if fault.seconds < NEVER:
            self.scheduler.after(fault.seconds, self._start, member.name)

    def _has(self, *kinds: str) -> bool:
        return any(fault.kind in kinds for fault in self.case.faults)


@contextlib.contextmanager
def no_last_error() -> Any:
    """Hide the last uncaught exception of this interpreter, by which the store tells how a script ends."""
    kept = {name: getattr(sys, name) for name in ("last_value",) if hasattr(sys, name)}
    for name in kept:
        delattr(sys, name)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(sys, name, value)
