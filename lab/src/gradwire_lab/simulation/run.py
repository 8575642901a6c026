"""One simulated run: its case, what happens in it, and the promises of the store that did not hold.

case         a seed, a workload and faults; all in one line, which replays it
violations   a push that counts twice, not, or in another step; a value that no undisturbed run gives; a live worker
             that is declared dead; a standstill; an exception that is not ours; an error that names a wrong cause
"""

from __future__ import annotations

import dataclasses
import functools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gradwire.errors import ConfigError, GradwireError
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.server import Server
from gradwire.kvstore.server.snapshot import Snapshots, open_core
from gradwire_lab.simulation.base import Participant, Simulation
from gradwire_lab.simulation.case import Fault, RunOutcome, SimulatedCase
from gradwire_lab.simulation.faults import CLASSES, NEEDS
from gradwire_lab.simulation.machine import SimulatedMachine
from gradwire_lab.simulation.workload import TIMEOUT, SimulatedTraining, gaps, train

__all__ = ["Case"]

DEATH = 6.0
"""Seconds of silence from which on an error may say that a worker is silent: the store's ``dead_after``, 8, without
what was on its way."""


DISCONNECT, RESTART, HEARTBEAT = 8.0, 30.0, 17.0
"""Documented seconds after which a server counts as gone that keeps no snapshot, or one, and those after which it is
seen that a server is stopped."""


@dataclass(frozen=True)
class Case(SimulatedCase):
    """A run of the store that can be repeated.

    Args:
        seed: seed of all that is drawn while it runs.
        work: workload of its workers.
        faults: faults that happen.
    """

    work: SimulatedTraining
    training = SimulatedTraining
    classes = CLASSES
    needs = NEEDS

    def run(self, log: bool = False) -> RunOutcome:
        return StoreSimulation(self, log).run()


class StoreSimulation(Simulation):
    """A run of the store.

    Args:
        case: case to run.
        log: true: keep all that happens as text.
    """

    patience = 3 * TIMEOUT

    def __init__(self, case: Case, log: bool = False) -> None:
        self.work = case.work
        super().__init__(case, [f"server-{i}" for i in range(self.work.servers)], [2e-4, 2e-4, 5e-3], log)
        self._waiting = [fault for fault in case.faults if fault.since]
        self._shown: dict[tuple[SimulatedMachine, str], tuple[list[SimulatedMachine], Tensor]] = {}
        self._hooks |= {"cut": self._cut, "stall": self._stall, "full": self._full, "end": self._nothing}
        self._hooks |= {"hang": self._hang, "swap": self._swap}
        self.endpoints = [f"tcp://127.0.0.1:{7000 + i}" for i in range(self.work.servers)]

    def _servers(self) -> list[Participant]:
        return [self.members[f"server-{index}"] for index in range(self.work.servers)]

    def _main(self, member: Participant) -> Callable[[], None]:
        """Return what the new process of a server or a worker runs."""
        if member.name.startswith("server"):
            if member.starts > 1:
                self._restarted(member)
            return functools.partial(self._serve, member, member.machine)
        return super()._main(member)

    def _serve(self, member: Participant, machine: SimulatedMachine) -> None:
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
        server = Server(core, self.endpoints[member.index], system=machine)

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

    def _script(self, member: Participant, machine: SimulatedMachine) -> None:
        """Run the script of a worker, and note how it ends."""
        rank = member.index
        source, heard = random.Random(f"{self.case.seed} {rank}"), 0

        def report(what: str, step: int, values: dict[str, Tensor]) -> None:
            nonlocal heard
            heard = len(self.errors.getvalue()) if what == "finishing" else heard
            if what == "begins":
                made = {name: min(int(version), self.work.steps) for name, version in values.items()}
                member.first = made if self._lost() else {}
            elif what == "pulled":
                self._check_pulled(rank, step, values)
            else:
                self._reached(what, member.name)

        train(self.work, rank, self.endpoints, machine, source, report)
        unsaved = re.findall("could not be told that this worker has finished: (.*)", self.errors.getvalue()[heard:])
        self._end(member, "unsaved" if unsaved else "ended", *unsaved[-1:])
        if unsaved:
            member.away.append([self.scheduler.now, float("inf")])
            away = any(each.absent(self.scheduler.now) >= DEATH for each in self.members.values())
            if not (away or self._has("full") or self._true(member, member.error)):
                self._found(f"{member.name} could not say that it has finished: {member.error}")

    def _failed(self, member: Participant, error: GradwireError) -> None:
        super()._failed(member, error)
        if self._late(member, str(error)):
            self._found(f"{member.name} gets an error too late: {error}")

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
        else:
            super()._strike(fault)

    def _cut(self, fault: Fault, member: Participant) -> None:
        name, _, other = fault.target.partition("~")
        self.network.cut(name, other, fault.count)

    def _stall(self, fault: Fault, member: Participant) -> None:
        name, _, other = fault.target.partition("~")
        self.network.stall(name, other, fault.seconds)
        for each in (name, other):
            self.members[each].away.append([self.scheduler.now, self.scheduler.now + fault.seconds])

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

    def _full(self, fault: Fault, member: Participant) -> None:
        member.files.full = True
        self.scheduler.after(fault.seconds, setattr, member.files, "full", False)

    def _nothing(self, fault: Fault, member: Participant) -> None:
        pass

    def _restart(self, fault: Fault, member: Participant) -> None:
        if fault.kind == "power":
            member.files.cut_power()
        if fault.kind == "flip":
            member.files.flip()
        if fault.kind == "older":
            member.files.put_back()
            member.forgets = True
        super()._restart(fault, member)

    def _restarted(self, server: Participant) -> None:
        """Note which workers a server waits for that have ended."""
        over = all(each.state == "ended" or each.absent(self.scheduler.now) >= DEATH for each in self._workers())
        forgets, server.forgets = server.forgets or not self.work.snapshot, False
        for each in self._workers():
            if each.state == "ended" and (over or forgets):
                # One whose run was over waits for all again; one that forgets has lost what nobody repeats.
                each.away.append([self.scheduler.now, float("inf")])
                each.state = "forgotten" if forgets else each.state

    def _lost(self) -> bool:
        """Return whether steps may have been made without a worker."""
        return self.work.proceed and any(each.absent(self.scheduler.now) >= DEATH for each in self._workers())

    def _first(self, name: str) -> list[int]:
        """Return the steps of a key that were made before each worker came."""
        return [each.first.get(name, 0) for each in self._workers()]

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
                for text in gaps(self.work, value, self._first(name), least, whole and not self.work.proceed):
                    self._found(f"worker {rank} pulls, after step {step}, {name}: {text}")
                self._check_shown(rank, name, value)
            if self._compared() and self.case.faults:
                # In sync all pull the same, and rank 0 makes the most steps.
                whose = rank if self.work.own else 0
                # One that had finished, and is started again with the others, is not waited for.
                again = any(each.kind == "job" and each.count for each in self.case.faults)
                several = self.work.servers > 1 or again
                last = self.work.steps_of(whose) if member.starts > 1 and several else step + 1
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
        # Where an older file was put back, and nobody is left who could hear of it, what it does not have is gone.
        kept = not any(each.forgets for each in self._servers())
        ended = [kept and each.state == "ended" for each in self._workers()]
        least = [self.work.steps_of(rank) if each else 0 for rank, each in enumerate(ended)]
        for name in self.work.names():
            value, known = torch.zeros(self.work.shape), torch.zeros(self.work.shape, dtype=torch.bool)
            for core in filter(None, map(self._final_core, self._servers())):
                core.values.separate_all()
                part = core.values.parts.get(name)
                if part is not None:
                    value.view(-1)[part.start : part.start + part.value.numel()] = part.value.view(-1)
                    known.view(-1)[part.start : part.start + part.value.numel()] = True
                    # A push for a step that is not made is not lost where the worker has ended.
                    for step, rank in [(step, rank) for step, pushes in part.pending.items() for rank in pushes]:
                        if part.start <= rank * self.work.steps + step - 1 < part.start + part.value.numel():
                            value[rank, step - 1] += self.work.weight(step - 1)
            if known.all():
                for text in gaps(self.work, value, self._first(name), least, whole=False):
                    self._found(f"in the end, of {name}: {text}")
                servers = [each.core and each.machine for each in self._servers()]
                # Values that workers have pulled need not be in a file before these have finished.
                shown = [each for (_, key), (them, each) in self._shown.items() if key == name and them == servers]
                if not self._has("end") and any(bool(((each != 0) & (value == 0)).any()) for each in shown):
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

    def _true(self, member: Participant, text: str) -> bool:
        """Return whether an error that a worker gets names something that has happened."""
        now, workers, servers = self.scheduler.now, self._workers(), self._servers()
        snapshot = self.work.snapshot > 0

        def away(index: str) -> bool:
            least = 29.0 if snapshot else 7.0
            told = "if any" in text or ("keeps no snapshot" in text) != snapshot
            return told and servers[int(index)].absent(now) >= least

        def unanswered(_: str) -> bool:
            # Others may have been away before the server was: together it is as long as the worker waited,
            # but for the time in which somebody computes.
            down, limit = any(each.absent(now) >= DISCONNECT for each in servers), TIMEOUT - 3.0 - self.work.pace
            return any(each.error for each in servers) or (down and self._away(now - TIMEOUT, now) >= limit)

        def known(server: Participant) -> bool:
            session = None if server.core is None else server.core.members.of(member.index)
            return session is not None and session.joined

        causes: dict[str, Callable[[str], bool]] = {
            r"workers? ([\d, ]+) (?:has|have) not been heard of for": lambda ranks: all(
                workers[int(each)].absent(now) >= DEATH for each in re.findall(r"\d+", ranks)
            ),
            r"server (\d+) at \S+ (?:has not been heard|is connected|never answered)": unanswered,
            # The server stood still before it ended: a request waited for both.
            r"not answered within \d+ s: server (\d+) at \S+ has been away": lambda index: (
                unanswered("") or away(index)
            ),
            r"not answered within \d+ s: server (\d+) at \S+ does not take": lambda _: (
                unanswered("") or self._has("full")
            ),
            r"server (\d+) at \S+ (?:has been away|is away|was away)": away,
            # A server that its rank's first process never reached takes the next one for the first.
            r"server (\d+) at \S+: set_optimizer must get the same": lambda index: (
                member.starts > 1 and not known(servers[int(index)])
            ),
            r"without a snapshot, or with an (older) copy": lambda _: not snapshot or self._has("older"),
            r"restarted (without) a snapshot": lambda _: not snapshot,
            r"restarted (without) its snapshot": lambda _: self._has("older", "swap"),
            r"made (without) worker \d+": lambda _: self.work.proceed and member.absent(now) >= DEATH,
            r"(waits) for worker 0's value": lambda _: unanswered("") or workers[0].absent(now) >= DEATH,
            r"not answered within .* waits for workers? ([\d, ]+)": lambda ranks: (
                unanswered("")
                # A server that was restarted twice no longer knows that the first time its file was an older one.
                or (self._has("older") and any(each.starts > 2 for each in servers))
                or all(workers[int(each)].absent(now) >= TIMEOUT - 3.0 for each in re.findall(r"\d+", ranks))
            ),
            r"with an (older) copy": lambda _: self._has("older"),
            r"this server (continues) server": lambda _: self._has("swap"),
            r"(No space|not written)": lambda _: self._has("full"),
        }
        found = [holds(named[1]) for pattern, holds in causes.items() if (named := re.search(pattern, text))]
        return bool(found) and found[0]

    def _away(self, start: float, end: float) -> float:
        """Return for how many seconds between two times at least one participant was away."""
        times = (span for each in self.members.values() for span in each.absences())
        spans = sorted((max(first, start), min(last, end)) for first, last in times)
        total, until = 0.0, start
        for first, last in spans:
            total += max(0.0, last - max(first, until))
            until = max(until, last)
        return total

    def _late(self, member: Participant, text: str) -> bool:
        """Return whether an error names a server that is away, and comes later than is documented."""
        named, now = re.search(r"server (\d+) at", text), self.scheduler.now
        server = self._servers()[int(named[1])] if named else member
        away = [start for start, stop in server.away if stop > now]
        if server is member or not away:
            return False
        process, knows = server.machine.simulated, "if any" not in text
        limit = (DISCONNECT if knows and not self.work.snapshot else RESTART) + (HEARTBEAT if process.stopped else 0.0)
        if "never answered" in text or "was not answered within" in text or process.running:
            limit = TIMEOUT
        since = max([*away, *(stop for _, stop in member.away)])
        # Whom it waited for before may have been away, too, or have ended, until the others went on without it.
        others = (span for each in self.members.values() if each is not server for span in each.away)
        asked = [stop if stop <= now else start + DEATH for start, stop in others]
        return now > max([since + limit, member.machine.woken, *asked]) + self.work.pace + 3.0


@functools.lru_cache(maxsize=4096)
def undisturbed(work: SimulatedTraining) -> dict[tuple[int, int, str], Tensor]:
    """Return what workers pull in a run without faults, by rank, step and key."""
    outcome = Case(0, work).run()
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
