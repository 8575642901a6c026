"""One simulated run: its case, what happens in it, and the promises of the store that did not hold.

case         a seed, a workload and faults; all in one line, which replays it
violations   a push that counts twice, not, or in another step; a value that no undisturbed run gives; a live worker
             that is declared dead; a standstill; an exception that is not ours; an error that names a wrong cause
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import ConfigError, GradwireError
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.server import Server
from gradwire.kvstore.server.snapshot import Snapshots, open_core
from gradwire.testing.simulation.disk import Files
from gradwire.testing.simulation.faults import NEVER, Fault, draw
from gradwire.testing.simulation.machine import SimulatedMachine
from gradwire.testing.simulation.network import Network
from gradwire.testing.simulation.scheduler import Scheduler
from gradwire.testing.simulation.workload import TIMEOUT, SimulatedTraining, gaps, train

__all__ = ["Case", "RunOutcome", "run", "shrink"]

DEATH = 6.0
"""Seconds of silence from which on an error may say that a worker is silent: the store's ``dead_after``, 8, without
what was on its way."""


DISCONNECT, RESTART, HEARTBEAT = 8.0, 30.0, 17.0
"""Documented seconds after which a server counts as gone that keeps no snapshot, or one, and those after which it is
seen that a server is stopped."""


@dataclass(frozen=True)
class Case:
    """A run that can be repeated.

    Args:
        seed: seed of all that is drawn while it runs.
        work: workload of its workers.
        faults: faults that happen.
    """

    seed: int
    work: SimulatedTraining
    faults: tuple[Fault, ...] = ()

    @classmethod
    def draw(cls, seed: int, name: str, work: SimulatedTraining | None = None) -> Case:
        """Draw a case of a class of faults, or of several as "cut+kill-server"."""
        source = random.Random(f"{name} {seed}")
        drawn, faults = draw(source, SimulatedTraining.draw(source) if work is None else work, name)
        return cls(seed, drawn, tuple(faults))

    @classmethod
    def parse(cls, line: str) -> Case:
        """Read a case as ``str`` writes it.

        Raises:
            ConfigError: the line is none.
        """
        words = line.split()
        faults = [Fault.parse(word) for word in words]
        try:
            work = SimulatedTraining.parse(
                [word for word, fault in zip(words[1:], faults[1:], strict=True) if fault is None]
            )
            return cls(int(words[0].removeprefix("seed=")), work, tuple(fault for fault in faults if fault is not None))
        except (LookupError, ValueError) as error:
            raise ConfigError(f"a case is as 'seed=1 workers=3 kill=server-0@1.5+4', got {line!r}: {error}") from None

    def __str__(self) -> str:
        return " ".join([f"seed={self.seed}", *str(self.work).split(), *map(str, self.faults)])


@dataclass
class RunOutcome:
    """The result of a run.

    Args:
        case: case that was run.
        violations: promises that did not hold, in words.
        digest: digest of all that happened, with its times.
        seconds: simulated seconds.
        seen: values that workers pulled, by rank, step and key.
        log: all that happened, if it was asked for.
    """

    case: Case
    violations: list[str]
    digest: str
    seconds: float
    seen: dict[tuple[int, int, str], Tensor]
    log: list[str]


@dataclass
class Participant:
    """A server or a worker, whose processes follow each other."""

    name: str
    machine: SimulatedMachine
    files: Files
    away: list[list[float]] = field(default_factory=list)
    """Times in which it did nothing: from, to."""
    core: ServerCore | None = None
    state: str = "runs"
    error: str = ""
    restarts: bool = False
    starts: int = 0
    forgets: bool = False
    """True of a server that begins with an older file, or with none."""
    first: int = 0

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
    """A run.

    Args:
        case: case to run.
        log: true: keep all that happens as text.
    """

    def __init__(self, case: Case, log: bool = False) -> None:
        self.case, self.work = case, case.work
        self.scheduler = Scheduler(str(case.seed))
        self.scheduler.log = [] if log else None
        source = self.scheduler.random
        self.network = Network(self.scheduler, source.choice([2e-4, 2e-4, 5e-3]), source.choice([20, 200]))
        self.violations: list[str] = []
        self._errors = io.StringIO()
        self.seen: dict[tuple[int, int, str], Tensor] = {}
        self._shown: dict[tuple[SimulatedMachine, str], tuple[list[SimulatedMachine], Tensor]] = {}
        self._busy = {f"worker-{rank}" for rank in range(self.work.workers)}
        self._waiting = [fault for fault in case.faults if fault.since]
        self._hooks: dict[str, Callable[[Fault, Participant], None]] = {
            "cut": self._cut,
            "stall": self._stall,
            "stop": self._stop,
            "hang": self._hang,
            "jump": self._jump,
            "full": self._full,
            "end": self._nothing,
            "swap": self._swap,
        }
        names = [f"server-{i}" for i in range(self.work.servers)] + [f"worker-{i}" for i in range(self.work.workers)]
        self.members = {name: self._member(name) for name in names}
        self.endpoints = [f"tcp://127.0.0.1:{7000 + i}" for i in range(self.work.servers)]

    def run(self) -> RunOutcome:
        """Run, and check the promises."""
        for name in self.members:
            late = self.work.late if name == f"worker-{self.work.workers - 1}" else 0.0
            self.scheduler.after(late, self._start, name)
        for fault in self.case.faults:
            if not fault.since:
                self.scheduler.after(fault.at, self._strike, fault)
        busy = self.work.steps * self.work.pace + self.work.late
        lasting = sum(fault.at + fault.seconds for fault in self.case.faults if fault.seconds < NEVER)
        in_time = False
        with contextlib.redirect_stderr(self._errors), no_last_error():
            try:
                in_time = self.scheduler.run(self._finished, 60.0 + busy + lasting + 3 * TIMEOUT)
                self._check_end()
            finally:
                self.scheduler.end()
        if not in_time:
            self._found(f"{', '.join(sorted(self._busy))} did not end until {self.scheduler.now:.0f} s")
        for thread, failure in self.scheduler.failures:
            self._found(f"thread {thread} ended by {type(failure).__name__}: {failure}")
        if "Traceback" in self._errors.getvalue():
            self._found(f"a server met with {self._errors.getvalue().strip().splitlines()[-1]}")
        log = [] if self.scheduler.log is None else self.scheduler.log
        violations = list(dict.fromkeys(self.violations))
        return RunOutcome(self.case, violations, self.scheduler.digest, self.scheduler.now, self.seen, log)

    def _member(self, name: str) -> Participant:
        files = Files(self.scheduler.random)
        return Participant(name, SimulatedMachine(self.network, name, files), files)

    def _workers(self) -> list[Participant]:
        return [self.members[f"worker-{rank}"] for rank in range(self.work.workers)]

    def _servers(self) -> list[Participant]:
        return [self.members[f"server-{index}"] for index in range(self.work.servers)]

    def _finished(self) -> bool:
        return not self._busy

    def _found(self, text: str) -> None:
        self.scheduler.trace(f"VIOLATION {text}")
        self.violations.append(text)

    def _start(self, name: str) -> None:
        """Start a process of a server or a worker, the first one or another one."""
        member, (role, _, index) = self.members[name], name.partition("-")
        if member.machine.simulated.alive and member.machine.simulated.tasks:
            return
        for each in member.away[-1:]:
            each[1] = min(each[1], self.scheduler.now)
        member.machine = SimulatedMachine(self.network, name, member.files)
        member.restarts = False
        member.starts += 1
        if role == "server" and member.starts > 1:
            self._restarted(member)
        process, started = member.machine.simulated, {"server": self._serve, "worker": self._train}[role]
        process.on_death.append(functools.partial(self._died, member))
        self.scheduler.trace(f"{name} starts")
        self.scheduler.start(process, lambda: started(int(index), member, member.machine), "main")

    def _died(self, member: Participant) -> None:
        member.away.append([self.scheduler.now, float("inf")])
        member.core = None
        if member.name.startswith("worker") and member.state == "runs" and not member.restarts:
            self._end(member, "killed")

    def _serve(self, index: int, member: Participant, machine: SimulatedMachine) -> None:
        work = self.work
        rules = Rules(work.workers, "continue" if work.proceed else "error", max_memory=2**30)
        try:
            core, snapshots = self._core(machine, rules), Snapshots(max(1, work.snapshot))
        except ConfigError as error:
            self.scheduler.trace(f"{member.name} refuses: {error}")
            member.error = str(error)
            member.away.append([self.scheduler.now, float("inf")])
            if not self._has("flip", "power", *["full"] * ("No space" in str(error))):
                self._found(f"{member.name} does not start: {error}")
            return
        member.core = core
        server = Server(core, self.endpoints[index], system=machine)

        def look() -> None:
            if core.journal is not None:
                snapshots.after(core)
            for rank in core.members.dead:
                if self._workers()[rank].absent(self.scheduler.now) < DEATH:
                    self._found(f"{member.name} declares worker {rank} dead, which is alive")

        server.run(lambda: False, look)

    def _core(self, machine: SimulatedMachine, rules: Rules) -> ServerCore:
        """Make a server's core as ``gradwire server`` does, from its file if there is one."""
        if not self.work.snapshot:
            return ServerCore(rules, system=machine)
        return open_core(Path("/server"), rules, machine, flushed=self._has("power"))

    def _train(self, rank: int, member: Participant, machine: SimulatedMachine) -> None:
        source, heard = random.Random(f"{self.case.seed} {rank}"), 0

        def report(what: str, step: int, values: dict[str, Tensor]) -> None:
            nonlocal heard
            heard = len(self._errors.getvalue()) if what == "finishing" else heard
            if what == "begins":
                member.first = min(step, self.work.steps) if self._lost() else 0
            elif what == "pulled":
                self._check_pulled(rank, step, values)
            else:
                self._reached(what, member.name)

        try:
            train(self.work, rank, self.endpoints, machine, source, report)
            unsaved = re.findall(
                "could not be told that this worker has finished: (.*)", self._errors.getvalue()[heard:]
            )
            self._end(member, "unsaved" if unsaved else "ended", *unsaved[-1:])
            if unsaved:
                member.away.append([self.scheduler.now, float("inf")])
                away = any(each.absent(self.scheduler.now) >= DEATH for each in self.members.values())
                if not (away or self._has("full") or self._true(rank, member.error)):
                    self._found(f"{member.name} could not say that it has finished: {member.error}")
        except Exception as error:
            self._end(member, "failed", str(error))
            self.scheduler.trace(f"{member.name} gets {error}")
            if not isinstance(error, GradwireError) or not self._true(rank, str(error)):
                self._found(f"worker {rank} gets an error without a cause: {type(error).__name__}: {error}")
            if self._late(member, str(error)):
                self._found(f"worker {rank} gets an error too late: {error}")
        if member.state == "failed":
            # A store that could not be made has connections, which end with the process.
            machine.simulated.kill()

    def _end(self, member: Participant, state: str, error: str = "") -> None:
        member.state, member.error, member.machine.ended = state, error, state != "killed"
        self._busy.discard(member.name)

    def _reached(self, what: str, name: str) -> None:
        """Let the faults begin that wait for the end of a worker, or of the first one."""
        self.scheduler.trace(what)
        mine = [each for each in self._waiting if "worker" not in each.target or each.target == name]
        for fault in [each for each in mine if each.since == what]:
            self._waiting.remove(fault)
            self.scheduler.after(fault.at, self._strike, fault)

    def _strike(self, fault: Fault) -> None:
        if fault.kind == "job":
            self._job(fault)
            return
        name = fault.target.partition("~")[0]
        member = self.members.get(name)
        if member is None or not member.machine.simulated.alive or member.state != "runs":
            return
        self.scheduler.trace(f"fault {fault}")
        self._hooks.get(fault.kind, self._kill)(fault, member)

    def _cut(self, fault: Fault, member: Participant) -> None:
        name, _, other = fault.target.partition("~")
        self.network.cut(name, other, fault.count)

    def _stall(self, fault: Fault, member: Participant) -> None:
        name, _, other = fault.target.partition("~")
        self.network.stall(name, other, fault.seconds)
        for each in (name, other):
            self.members[each].away.append([self.scheduler.now, self.scheduler.now + fault.seconds])

    def _stop(self, fault: Fault, member: Participant) -> None:
        # The time of a pause begins at the next look at the clock, which is soon.
        member.away.append([self.scheduler.now, self.scheduler.now + fault.seconds])
        if fault.count:
            member.machine.simulated.pause = self.scheduler.now + fault.seconds
        else:
            member.machine.simulated.stop(fault.seconds)

    def _hang(self, fault: Fault, member: Participant) -> None:
        member.away.append([self.scheduler.now, self.scheduler.now + fault.seconds])
        member.machine.simulated.hang = self.scheduler.now + fault.seconds

    def _swap(self, fault: Fault, member: Participant) -> None:
        first, second = self._servers()
        for each in (first, second):
            each.machine.simulated.kill()
            self.scheduler.after(fault.seconds, self._start, each.name)
        first.files, second.files = second.files, first.files

    def _job(self, fault: Fault) -> None:
        self.scheduler.trace(f"fault {fault}")
        for member in self.members.values():
            if member.state != "runs" and not (member.state == "ended" and fault.count):
                continue
            if member.name.startswith("worker"):
                self._busy.add(member.name)
            member.state, member.restarts = "runs", True
            member.machine.simulated.kill()
            self.scheduler.after(fault.seconds * (0.5 + self.scheduler.random.random()), self._start, member.name)

    def _jump(self, fault: Fault, member: Participant) -> None:
        member.machine.simulated.ahead += fault.seconds

    def _full(self, fault: Fault, member: Participant) -> None:
        member.files.full = True
        self.scheduler.after(fault.seconds, setattr, member.files, "full", False)

    def _nothing(self, fault: Fault, member: Participant) -> None:
        pass

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
        if fault.kind == "power":
            member.files.cut_power()
        if fault.kind == "flip":
            member.files.flip()
        if fault.kind == "older":
            member.files.put_back()
            member.forgets = True
        if fault.seconds < NEVER:
            self.scheduler.after(fault.seconds, self._start, member.name)

    def _restarted(self, server: Participant) -> None:
        """Note which workers a server waits for that have ended."""
        over = all(each.state == "ended" or each.absent(self.scheduler.now) >= DEATH for each in self._workers())
        forgets, server.forgets = server.forgets or not self.work.snapshot, False
        for each in self._workers():
            if each.state == "ended" and (over or forgets):
                # One whose run was over waits for all again; one that forgets has lost what nobody repeats.
                each.away.append([self.scheduler.now, float("inf")])
                each.state = "forgotten" if forgets else each.state

    def _has(self, *kinds: str) -> bool:
        return any(fault.kind in kinds for fault in self.case.faults)

    def _lost(self) -> bool:
        """Return whether steps may have been made without a worker."""
        return self.work.proceed and any(each.absent(self.scheduler.now) >= DEATH for each in self._workers())

    def _first(self) -> list[int]:
        """Return the steps that were made before each worker came."""
        return [each.first for each in self._workers()]

    def _compared(self) -> bool:
        """Return whether all values must be those of a run without faults."""
        lost = self._lost()
        killed = (fault for fault in self.case.faults if fault.kind in ("kill", "job"))
        again = self.work.bits and any("server" not in fault.target for fault in killed)
        return (self.work.sync or self.work.own) and not (lost and self.work.sync) and not again

    def _check_pulled(self, rank: int, step: int, values: dict[str, Tensor]) -> None:
        member = self._workers()[rank]
        for name, value in values.items():
            self.seen[rank, step, name] = value
            self.scheduler.trace(f"worker {rank} pulls {name} {step} {value.view(-1).tolist()}")
            if self.work.counted:
                # A worker that comes to a key of which some parts have made steps without it leaves these out.
                own = 0 if self._lost() and self.work.cut else step + 1
                least = [own if each == rank else self._within_bound(each, step) for each in range(self.work.workers)]
                whole = self.work.servers == 1 or not self.work.cut
                for text in gaps(self.work, value, self._first(), least, whole and not self.work.proceed):
                    self._found(f"worker {rank} pulls, after step {step}, {name}: {text}")
                self._check_shown(rank, name, value)
            if self._compared() and self.case.faults:
                # In sync all pull the same, and rank 0 makes the most steps.
                whose = rank if self.work.own else 0
                last = self.work.steps_of(whose) if member.starts > 1 and self.work.servers > 1 else step + 1
                expected = [reference(self.work)[whose, each, name] for each in range(step, last)]
                if not bool((torch.stack(expected) == value).any(0).all()):
                    self._found(f"worker {rank} pulls another value of {name} after step {step} than without faults")

    def _within_bound(self, rank: int, step: int) -> int:
        """Return the steps of a worker that must count for one that pulls after a step."""
        if self.work.staleness < 0 or self._workers()[rank].absent(self.scheduler.now) >= DEATH:
            return 0
        return min(self.work.steps_of(rank), step + 1 - self.work.staleness)

    def _check_shown(self, rank: int, name: str, value: Tensor) -> None:
        """Check that all that a process has pulled before is still there, unless a server was restarted."""
        machine, servers = self._workers()[rank].machine, [each.machine for each in self._servers()]
        before = self._shown.get((machine, name))
        if before is not None and before[0] == servers and bool(((before[1] != 0) & (value == 0)).any()):
            self._found(f"worker {rank} pulls {name}, in which pushes no longer count that did before")
        if all(each.woken <= machine.woken for each in servers):
            self._shown[machine, name] = servers, value

    def _check_end(self) -> None:
        """Check the values on the servers when all workers have ended."""
        if not self.work.counted or (self._lost() and self.work.cut):
            return
        least = [self.work.steps_of(i) if each.state == "ended" else 0 for i, each in enumerate(self._workers())]
        for name in self.work.names():
            value, known = torch.zeros(self.work.shape), torch.zeros(self.work.shape, dtype=torch.bool)
            for core in filter(None, map(self._final_core, self._servers())):
                core.values.separate_all()
                part = core.values.parts.get(name)
                if part is not None:
                    value.view(-1)[part.start : part.start + part.value.numel()] = part.value.view(-1)
                    known.view(-1)[part.start : part.start + part.value.numel()] = True
            if known.all():
                for text in gaps(self.work, value, self._first(), least, whole=False):
                    self._found(f"in the end, of {name}: {text}")
                servers = [each.core and each.machine for each in self._servers()]
                # Values that workers have pulled need not be in a file before these have finished.
                shown = (
                    []
                    if self._has("end")
                    else [each for (_, key), (them, each) in self._shown.items() if key == name and them == servers]
                )
                if any(bool(((each != 0) & (value == 0)).any()) for each in shown):
                    self._found(f"in the end, of {name}: a push no longer counts that a worker has pulled")

    def _final_core(self, member: Participant) -> ServerCore | None:
        """Return the state of a server, or what its file has if it is down or is killed in the end."""
        if (member.core is not None and not self._has("end")) or not self.work.snapshot or member.error:
            return member.core
        rules = Rules(self.work.workers, max_memory=2**30)
        machine = SimulatedMachine(self.network, member.name, member.files)
        try:
            return self._core(machine, rules)
        except ConfigError as error:
            if not self._has("flip", "power"):
                self._found(f"{member.name} does not start: {error}")
            return None

    def _true(self, rank: int, text: str) -> bool:
        """Return whether an error names something that has happened."""
        now, workers, servers = self.scheduler.now, self._workers(), self._servers()
        snapshot = self.work.snapshot > 0

        def away(index: str) -> bool:
            least = 29.0 if snapshot else 7.0
            told = "if any" in text or ("keeps no snapshot" in text) != snapshot
            return told and servers[int(index)].absent(now) >= least

        def unanswered(_: str) -> bool:
            return any(each.error or each.absent(now) >= TIMEOUT - 3.0 for each in servers)

        causes: dict[str, Callable[[str], bool]] = {
            r"workers? ([\d, ]+) (?:has|have) not been heard of for": lambda ranks: all(
                workers[int(each)].absent(now) >= DEATH for each in ranks.split(", ")
            ),
            r"server (\d+) at \S+ (?:has not been heard|is connected|never answered)": unanswered,
            r"server (\d+) at \S+ (?:has been away|is away|was away)": away,
            r"restarted (without) a snapshot": lambda _: not snapshot,
            r"restarted (without) its snapshot": lambda _: self._has("older"),
            r"made (without) worker \d+": lambda _: self.work.proceed and workers[rank].absent(now) >= DEATH,
            r"(waits) for worker 0's value": lambda _: unanswered("") or workers[0].absent(now) >= DEATH,
            r"not answered within .* waits for workers? ([\d, ]+)": lambda ranks: (
                unanswered("") or all(workers[int(each)].absent(now) >= TIMEOUT - 3.0 for each in ranks.split(", "))
            ),
            r"with an (older) copy": lambda _: self._has("older"),
            r"this server (continues) server": lambda _: self._has("swap"),
            r"(No space|not written)": lambda _: self._has("full"),
        }
        found = [holds(named[1]) for pattern, holds in causes.items() if (named := re.search(pattern, text))]
        return bool(found) and found[0]

    def _late(self, member: Participant, text: str) -> bool:
        """Return whether an error names a server that is away, and comes later than is documented."""
        named, now = re.search(r"server (\d+) at", text), self.scheduler.now
        server = self._servers()[int(named[1])] if named else member
        away = [start for start, stop in server.away if stop > now]
        if server is member or not away:
            return False
        process, knows = server.machine.simulated, "if any" not in text
        limit = (DISCONNECT if knows and not self.work.snapshot else RESTART) + (HEARTBEAT if process.stopped else 0.0)
        if "never answered" in text or process.running:
            limit = TIMEOUT
        since = max([*away, *(stop for _, stop in member.away)])
        # Whom it waited for before may have been away, too.
        asked = [stop for each in self.members.values() for _, stop in each.away if stop <= now]
        return now > max([since + limit, member.machine.woken, *asked]) + self.work.pace + 3.0


@functools.lru_cache(maxsize=4096)
def undisturbed(work: SimulatedTraining) -> dict[tuple[int, int, str], Tensor]:
    """Return what workers pull in a run without faults, by rank, step and key."""
    outcome = Simulation(Case(0, work)).run()
    assert not outcome.violations, (work, outcome.violations)
    return outcome.seen


def reference(work: SimulatedTraining) -> dict[tuple[int, int, str], Tensor]:
    """Return what workers pull in a run without faults; what does not change the values is left out of the run."""
    return undisturbed(
        dataclasses.replace(
            work,
            pace=0.05,
            late=0.0,
            snapshot=0,
            proceed=False,
            exits=False,
            barrier=0,
            pull=1,
            refused=False,
            staleness=-1,
        )
    )


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


def run(case: Case, log: bool = False) -> RunOutcome:
    """Run a case.

    Args:
        case: case to run.
        log: true: keep all that happens as text.
    """
    return Simulation(case, log).run()


def shrink(case: Case, fails: Callable[[Case], bool] = lambda case: bool(run(case).violations)) -> Case:
    """Leave out faults of a failing case, one at a time, while it still fails."""
    for fault in case.faults:
        smaller = dataclasses.replace(case, faults=tuple(each for each in case.faults if each is not fault))
        if fails(smaller):
            return shrink(smaller, fails)
    return case
