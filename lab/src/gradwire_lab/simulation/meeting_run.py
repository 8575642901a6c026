"""One simulated run of a meeting: its case, what happens in it, and the promises that did not hold.

violations   two states after one round; a local step that counts twice, or neither counts nor waits; a worker that is
             weighed by other steps than count; one that is left out though it was there, or that nobody expects though
             it came; a wait longer than the deadline; a standstill; an exception that is not ours; an error that names
             a wrong cause
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from gradwire.errors import GradwireError
from gradwire.optim.local.attendance import KEPT
from gradwire.optim.local.closed import Closed
from gradwire_lab.simulation.base import Participant, Simulation
from gradwire_lab.simulation.case import NEVER, Fault, RunOutcome, SimulatedCase
from gradwire_lab.simulation.faults import any_time, short
from gradwire_lab.simulation.machine import SimulatedMachine
from gradwire_lab.simulation.meeting_island import IslandJob, SimulatedMesh
from gradwire_lab.simulation.meeting_store import SimulatedPlace, SimulatedStore
from gradwire_lab.simulation.meeting_work import DEADLINE, TIMEOUT, MeetingTraining, MeetingWorker

__all__ = ["MeetingCase"]

SLACK = 3.0
"""Seconds that a few operations take at most."""

KEY = re.compile(r"gradwire//closed/(\d+)")

ANOTHER = re.compile(r"of this worker (failed|is gone|does not answer)")
"""Error of a rank of an island because of another one, which must have another error, or have been killed."""


def strike(kind: str, target: str, source: random.Random, work: MeetingTraining, seconds: float) -> list[Fault]:
    """Draw a fault of a kind, at any time in which workers train, before or after some operations."""
    at = round(source.uniform(0.0, 0.5 + 0.6 * work.length * work.pace + work.late), 3)
    return [Fault(kind, target, at, seconds, count=source.choice([0, 1, 2, 3, 5, 8, 13, 21]))]


def any_worker(kind: str, seconds: Callable[[random.Random], float]) -> Callable[..., list[Fault]]:
    """Return a function that draws a fault of a worker."""

    def draw(source: random.Random, work: MeetingTraining) -> list[Fault]:
        return strike(kind, f"worker-{source.randrange(work.workers)}", source, work, seconds(source))

    return draw


def the_place(kind: str, seconds: Callable[[random.Random], float]) -> Callable[..., list[Fault]]:
    """Return a function that draws a fault of the place."""
    return lambda source, work: strike(kind, "place", source, work, seconds(source))


def never(_: random.Random) -> float:
    """Return the time after which nothing comes again."""
    return NEVER


def leap(source: random.Random) -> float:
    """Draw the seconds that a clock gains."""
    return round(source.uniform(1, 100), 1)


CLASSES: dict[str, Callable[[random.Random, MeetingTraining], list[Fault]]] = {
    "none": lambda *_: [],
    "kill": any_worker("kill", any_time),
    "lose": any_worker("lose", any_time),
    "gone": any_worker("kill", never),
    "stop": any_worker("stop", any_time),
    "stall": any_worker("stall", any_time),
    "refuse": any_worker("refuse", short),
    "twin": any_worker("twin", never),
    "jump": any_worker("jump", leap),
    "place": the_place("kill", never),
    "new-place": the_place("kill", short),
    "slow-place": the_place("stop", short),
}
"""Classes of faults: a worker is killed and comes again with its checkpoint, or without; is killed for ever; is
stopped; is slow to reach the place; cannot hand in or take a payload, and starts again; has the name of another one;
has a clock that jumps. The place is killed; is killed and an empty one follows; is stopped."""


@dataclass(frozen=True)
class MeetingCase(SimulatedCase):
    """A run of a meeting that can be repeated.

    Args:
        seed: seed of all that is drawn while it runs.
        work: workload of its workers.
        faults: faults that happen.
    """

    work: MeetingTraining
    training = MeetingTraining
    classes = CLASSES

    @classmethod
    def draw(cls, seed: int, name: str, work: Any = None) -> Self:
        """Draw a case; of some the workers are islands, and a fault is one of a rank or of all."""
        case, source = super().draw(seed, name, work), random.Random(f"islands {name} {seed}")
        ranks = source.choice([*[1] * 6, 2, 2, 3, 4])
        if work is not None or ranks == 1:
            return case
        faults = list[Fault]()
        for fault in case.faults:
            job, _, number = fault.target.partition("-")
            alone = job == "place" or fault.kind == "twin"
            for rank in [0] if alone else source.choice([range(ranks), [source.randrange(ranks)]]):
                count = source.randrange(60) if fault.count and rank else fault.count
                faults.append(replace(fault, target=f"{job}{rank or ''}-{number}" if number else job, count=count))
        return cls(seed, replace(case.work, ranks=ranks), tuple(faults))

    def run(self, log: bool = False) -> RunOutcome:
        return MeetingSimulation(self, log).run()


class MeetingSimulation(Simulation):
    """A run of a meeting.

    Args:
        case: case to run.
        log: true: keep all that happens as text.
    """

    patience = 3 * TIMEOUT

    def __init__(self, case: MeetingCase, log: bool = False) -> None:
        self.work = case.work
        super().__init__(case, ["place"], [2e-4, 2e-4, 2e-3], log)
        self._hooks |= {"stall": self._stall, "refuse": self._refuse, "twin": self._twin}
        self.jobs: dict[str, IslandJob] = {}
        for rank in range(self.work.workers):
            self._add_ranks(f"worker-{rank}")
        self.scripts: dict[str, MeetingWorker] = {}
        self.saved: dict[str, dict[tuple[int, int], tuple[Any, SimulatedPlace]]] = {}
        self.saved_at: dict[str, SimulatedPlace] = {}
        self.states: dict[tuple[SimulatedPlace, int, int], tuple[bytes, torch.Tensor]] = {}
        self._numbers = [itertools.count() for _ in range(self.work.workers)]
        self._begun: dict[str, float] = {}
        self._back = 0.0
        self._again: dict[str, float] = {}
        self._caused: dict[str, bool] = {}
        self._because: dict[str, list[str]] = {}

    def _add_ranks(self, name: str) -> None:
        """Add the other ranks of a worker that is an island."""
        for rank in range(1, self.work.ranks):
            other = name.replace("-", f"{rank}-")
            self.members[other] = self._member(other)
            self._busy.add(other)

    def _ranks(self, member: Participant) -> list[Participant]:
        """List the processes that are one worker with this one, the first rank before the others."""
        job, _, number = member.name.partition("-")
        if not number:
            return [member]
        job = job.rstrip("0123456789")
        return [self.members[f"{job}{rank or ''}-{number}"] for rank in range(self.work.ranks)]

    def _start(self, name: str) -> None:
        """Start a process, or all ranks of an island, from the newest step of which all have a checkpoint."""
        member = self.members[name]
        ranks = self._ranks(member)
        if len(ranks) == 1:
            super()._start(name)
            return
        lives = [each.machine.simulated.alive and bool(each.machine.simulated.tasks) for each in ranks]
        if member is not ranks[0] or all(lives):
            return
        self._check_causes(name)
        for each in ranks:
            each.restarts, each.state, each.error = True, "runs", ""
            self._busy.add(each.name)
            if each.starts:
                each.machine.simulated.kill()
        files = [self.saved.get(each.name, {}) for each in ranks]
        common = max(set(files[0]).intersection(*files), default=None)
        apart = all(files) and any(max(each) != common for each in files)
        mixed = apart and common is not None and self.scheduler.random.random() < 0.5
        for each, own in zip(ranks, files, strict=True):
            super()._start(each.name)
            if not mixed:
                self.saved[each.name] = {} if common is None else {common: own[common]}
        self.jobs[name] = IslandJob([each.machine for each in ranks], self.work.shape, mixed=mixed)
        self._caused[name], self._because[name] = False, []

    def _check_causes(self, name: str) -> None:
        """Check that a rank of an island has an error of its own, or was killed, if others end because of it."""
        if self._because.get(name) and not self._caused[name]:
            self._found(f"{self._because[name][0]}, and no other rank has failed")

    def _check_end(self) -> None:
        for name in self.jobs:
            self._check_causes(name)

    def _died(self, member: Participant) -> None:
        if member.state == "runs":
            self._caused[self._ranks(member)[0].name] = True
        super()._died(member)

    def _main(self, member: Participant) -> Callable[[], None]:
        """Return what the new process of the place or a worker runs."""
        if member is self.members["place"]:
            self.place = SimulatedPlace(member.machine, self._changed)
            return lambda: self.scheduler.wait(lambda: False)
        return super()._main(member)

    def _script(self, member: Participant, machine: SimulatedMachine) -> None:
        """Run the script of a worker, and note how it ends."""
        rank, ranks = member.index, self._ranks(member)
        store, shard = SimulatedStore(self.place, machine), ranks.index(member)
        self._begun[member.name] = self.scheduler.now
        files = self.saved.get(member.name, {})
        saved, self.saved_at[member.name] = files[max(files)] if files else (None, self.place)
        job = self.jobs.get(ranks[0].name)
        mesh = None if job is None else SimulatedMesh(job, shard)
        worker = MeetingWorker(self.work, rank, store, machine, saved, mesh)
        self.scripts[member.name] = worker
        source = random.Random(f"{self.case.seed} {rank}" + f".{shard}" * (shard > 0))
        number = self._numbers[rank].__next__ if job is None else functools.partial(self._number, member, job, worker)
        worker.run(number, source, functools.partial(self._report, member))
        self._end(member, "ended")

    def _number(self, member: Participant, job: IslandJob, worker: MeetingWorker) -> int:
        """Return the number of the next local step of a rank, which is the same on all ranks of its island."""
        if worker.made == len(job.numbers):
            job.numbers.append(next(self._numbers[member.index]))
        return job.numbers[worker.made]

    def _failed(self, member: Participant, error: GradwireError) -> None:
        """Start a worker again at a new place where the old one is gone, or where one of its ranks alone has failed."""
        text, first = str(error), self._ranks(member)[0].name
        if first in self.jobs and ANOTHER.search(text):
            self._because[first].append(f"{member.name} gets {text}")
            self._end(member, "failed", text)
            return
        self._caused[first] = True
        seconds = max(0.0, self._back - self.scheduler.now) + 1.0
        if "payload refused" in text or "state_dict must be on all ranks" in text:
            seconds = self._again.pop(member.name, 1.0)
        elif "does not answer" not in text or not self._back:
            super()._failed(member, error)
            return
        if not self._true(member, text):
            super()._failed(member, error)
            return
        member.restarts = True
        member.machine.simulated.kill()
        self.scheduler.after(seconds, self._start, first)

    def _refuse(self, fault: Fault, member: Participant) -> None:
        if member.name in self.scripts:
            self.scripts[member.name].store.refuses, self._again[member.name] = fault.count, fault.seconds

    def _stall(self, fault: Fault, member: Participant) -> None:
        member.away.append([self.scheduler.now, self.scheduler.now + fault.seconds])
        if member.name in self.scripts:
            self.scripts[member.name].store.stalled = self.scheduler.now + fault.seconds

    def _twin(self, fault: Fault, member: Participant) -> None:
        name = f"twin-{member.index}"
        if name not in self.members:
            self.members[name] = self._member(name)
            self._busy.add(name)
            self._add_ranks(name)
            self._start(name)

    def _restart(self, fault: Fault, member: Participant) -> None:
        if fault.kind == "lose":
            for each in self._ranks(member):
                self.saved.pop(each.name, None)
        if member is self.members["place"]:
            self._back = self.scheduler.now + fault.seconds if fault.seconds < NEVER else 0.0
        super()._restart(fault, self._ranks(member)[0])

    def _report(self, member: Participant, what: str, worker: MeetingWorker) -> None:
        """Check what a worker has after each of its calls."""
        now = self.scheduler.now
        self.scheduler.trace(f"{member.name} {what} {worker.round}")
        if what == "save":
            files = self.saved.setdefault(member.name, {})
            files[member.starts, worker.made] = worker.checkpoint(), worker.store.place
            self.saved_at[member.name] = worker.store.place
            if len(files) > 2:
                del files[min(files)]
        if what in ("joined", "stepped"):
            longest = (2 if what == "joined" else 1) * TIMEOUT + DEADLINE + SLACK
            if now - self._begun[member.name] - self._away(self._begun[member.name], *self._both(member)) > longest:
                self._found(f"{member.name} stands still for {now - self._begun[member.name]:.1f} s before it {what}")
        if what == "joined" and any(job.mixed and worker.machine in job.machines for job in self.jobs.values()):
            self._found(f"{member.name} goes on from a checkpoint of another step than another rank")
        if what in ("joined", "stepped", "left"):
            self._check_state(member, worker)
            if not self.work.outer:
                self._check_steps(member, worker)
        self._begun[member.name] = now

    def _check_state(self, member: Participant, worker: MeetingWorker) -> None:
        place, t, shard = worker.store.place, worker.round, worker.shard
        state, counted = worker.state(), worker.counted().clone()
        known, _ = self.states.setdefault((place, t, shard), (state, counted))
        if known != state:
            self._found(f"{member.name} has another state after round {t} than others")
        if worker.strange:
            self._found(f"{member.name} has parameters of another shard after round {t}")
        _, first = self.states.get((place, t, 0), (b"", counted))
        if not self.work.outer and not self.work.sparse and not counted.equal(first):
            self._found(f"other steps count in shard {shard} than in the first after round {t}")
        earlier = [at for where, at, of in self.states if where is place and at < t and of == shard]
        if not earlier or self.work.outer:
            return
        before = self.states[place, max(earlier), shard][1]
        came = {at: self._closed(place, at) for at in range(max(earlier) + 1, t + 1)}
        for fragment, rank, number in (counted != before).nonzero().tolist():
            shares = [
                each.shares[each.sent.index(str(rank))]
                for at, each in came.items()
                if str(rank) in each.sent and (at - 1) % len(counted) == fragment
            ]
            now, then = counted[fragment, rank, number], before[fragment, rank, number]
            if then or not any(abs(now - share) < 1e-6 for share in shares):
                change = f"{then:g} to {now:g}"
                self._found(f"step {number} of worker {rank} counts in round {t} from {change}, not once in {shares}")
        if self.work.weighs and not self.work.sparse and len(came) == 1:
            self._check_weights(t, came[t], (counted != before)[(t - 1) % len(counted)].sum(1).tolist())

    def _check_weights(self, t: int, closed: Closed, made: list[int]) -> None:
        """Check that workers were weighed by the local steps that count in a round."""
        for name in closed.sent:
            # The steps of an island are those of all its ranks.
            weight = closed.came[name].weight / self.work.ranks
            if made[int(name)] and weight != made[int(name)]:
                self._found(f"worker {name} has weight {weight:g} in round {t}, in which {made[int(name)]} steps count")

    def _check_steps(self, member: Participant, worker: MeetingWorker) -> None:
        """Check that each local step counts or waits, and once."""
        rounds = worker.optimizer.rounds
        assert rounds is not None
        if self.work.fragments and worker.under_way:
            # What is handed in is in the parameters until it has landed.
            return
        counted, waiting = worker.counted()[:, worker.rank], worker.waiting()[:, worker.rank]
        there = {(fragment, number) for fragment, number in ((counted != 0) | (waiting != 0)).nonzero().tolist()}
        twice = [at for at in sorted(there) if (counted[at] and waiting[at]) or waiting[at] not in (0.0, -1.0)]
        if twice:
            both = ([float(each[at]) for at in twice] for each in (waiting, counted))
            self._found("steps {} of {} wait {} and count {}".format(twice, member.name, *both))
        if self._has("twin"):
            worker.steps &= there
        elif worker.store.place is not self.saved_at.get(member.name) or (rounds.forgot and self.work.sparse):
            worker.steps -= worker.loaded - there
        if not worker.steps <= there:
            self._found(f"steps {sorted(worker.steps - there)} of {member.name} neither count nor wait")

    def _closed(self, place: SimulatedPlace, t: int) -> Closed:
        return Closed.read(json.loads(place.values[f"gradwire//closed/{t}"]))

    def _entries(self, place: SimulatedPlace, name: str, after: int = 0) -> list[tuple[float, Any]]:
        """Return the notes of a list at the place, with the times at which they came there."""
        count = int(place.values.get(f"gradwire//{name}/count", b"0"))
        keys = [f"gradwire//{name}/{number}" for number in range(after + 1, count + 1)]
        notes = [(place.times[key], json.loads(place.values[key])) for key in keys if key in place.values]
        return [(time, note) for time, note in notes if note]

    def _changed(self, place: SimulatedPlace, key: str) -> None:
        """Check a round when it is closed."""
        found = KEY.fullmatch(key)
        t = int(found[1]) if found else 0
        if found is None or f"gradwire//closed/{t - 1}" not in place.values:
            return
        now, before, closed = self.scheduler.now, self._closed(place, t - 1), self._closed(place, t)
        arrivals: dict[str, float] = {}
        for time, note in self._entries(place, f"arrivals/{t}"):
            arrivals.setdefault(note["name"], time)
        first = min(arrivals.values(), default=now)
        joins = self._entries(place, "joins", before.seen)
        latest = {note["name"]: note for _, note in joins}
        left = {note["name"] for _, note in joins if note.get("left")}
        holds = {note["name"] for time, note in joins if note.get("round") == t - 1 > 0 and time <= first}
        missing = (holds | set(before.roster)) - left - closed.came.keys()
        needing = {name for name, note in latest.items() if note.get("round", 0) < 0}
        enough = 0 < self.work.quorum <= len(closed.came)
        # Who waits for a quorum counts a part of the deadline for a jump of its clock.
        early = DEADLINE / 4 if self.work.quorum and self._has("jump") else 0.0
        for name in sorted(missing) if not enough else ():
            if now < first + DEADLINE - early - 1e-3 and name not in needing:
                self._found(f"round {t} is closed without worker {name} after {now - first:.3f} s")
            if arrivals.get(name, NEVER) < first + DEADLINE - early - 1e-3:
                self._found(f"round {t} is closed without worker {name}, who came before the deadline")
        unexpected = closed.came.keys() - closed.roster - {name for name, note in latest.items() if note.get("left")}
        if unexpected:
            self._found(f"nobody expects {sorted(unexpected)} after round {t}, in which they came")
        complete = max([*arrivals.values(), *(time for time, note in joins if note.get("left"))], default=now)
        late = {note["name"] for _, note in joins if note.get("round", -1) >= 0}
        due = first + DEADLINE if (late | set(before.roster)) - left - needing - closed.came.keys() else complete
        if now > due + SLACK and not any(
            self._away(due if due == complete else first, *self._both(each)) for each in self._all()
        ):
            self._found(
                f"round {t} is closed {now - first:.1f} s after its first payload, due after {due - first:.1f} s"
            )

    def _both(self, member: Participant) -> tuple[Participant, ...]:
        """Return a worker, with all of its ranks, and the place, without which it does nothing."""
        return *self._ranks(member), self.members["place"]

    def _all(self) -> list[Participant]:
        """Return all but the place."""
        return [each for each in self.members.values() if each is not self.members["place"]]

    def _away(self, since: float, member: Participant, *others: Participant) -> float:
        """Return the seconds since a time in which participants did nothing."""
        now, times = self.scheduler.now, [time for each in (member, *others) for time in each.away]
        return sum(max(0.0, min(end, now) - max(begin, since)) for begin, end in times)

    def _true(self, member: Participant, text: str) -> bool:
        """Return whether an error that a worker gets names something that has happened."""
        now, worker, ranks = self.scheduler.now, self.scripts[member.name], self._ranks(member)
        if "payload refused" in text:
            return self._has("refuse")
        others = [each for each in self._all() if each.index != member.index]
        if "does not answer" in text:
            dead = not worker.store.place.machine.simulated.alive
            since = max(self._begun[member.name], self.members["place"].away[-1][0] if dead else now)
            return dead and "SimulatedStore" in text and now - since < SLACK + self._away(since, *ranks)
        if "state_dict must be on all ranks" in text:
            return self.jobs[ranks[0].name].mixed
        if "another process came as worker" in text:
            return any(each.index == member.index for each in self._all() if each not in ranks)
        # Whoever has missed more than hangs at the place needs the state, too.
        closed = (int(found[1]) for found in map(KEY.fullmatch, worker.store.place.values) if found)
        held = max(closed, default=0) - KEPT * max(1, self.work.fragments)
        lived = [
            each
            for each in others
            if each.name in self.scripts and self.scripts[each.name].joined
            if self.scripts[each.name].round >= held
            if all(rank.state == "runs" and rank.machine.simulated.alive for rank in self._ranks(each))
            and self._away(now - DEADLINE, *self._both(each)) == 0
        ]
        if re.search(r"\d+ of \d+ workers came", text):
            there = {
                each.index
                for each in [member, *others]
                if all(rank.state == "runs" for rank in self._ranks(each))
                if self._begun.get(each.name, now) < now - SLACK
                if not self._away(self._begun[each.name], *self._both(each))
            }
            return len(there) < self.work.first and now - self._begun[member.name] >= TIMEOUT - SLACK
        silent = re.search(r"worker '(\d+)' did not say", text)
        if silent:
            return any(each.absent(now) > 0 for each in self._ranks(self.members[f"worker-{silent[1]}"]))
        if "waited" in text:
            # Of a jump of the clock counts no more than a deadline.
            least = TIMEOUT - SLACK - (DEADLINE if self._has("jump") else 0.0)
            return not lived and now - self._begun[member.name] >= least
        return "everybody has left" in text and not lived
