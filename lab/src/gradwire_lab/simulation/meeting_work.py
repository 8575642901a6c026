"""Work of a simulated meeting: workers whose local steps are counted in the parameters on which they agree.

A local step of a worker adds 1 at a place of its own, so an agreed value says in which round the step counted: it is
the share that the worker had in the mean of that round. A step that was not sent yet is -1 at its place on the worker.
With fragments it does so in each of them.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.futures import Future

from gradwire._system import BaseSystem
from gradwire.optim.local.local_steps import LocalSteps
from gradwire.optim.local.meeting import Island, Meeting
from gradwire.rounds import diloco, local_sgd
from gradwire.transport.worker import Worker
from gradwire_lab.simulation.case import SimulatedWork
from gradwire_lab.simulation.machine import SimulatedMachine
from gradwire_lab.simulation.meeting_island import SimulatedIsland, SimulatedMesh
from gradwire_lab.simulation.meeting_store import SimulatedStore

__all__ = ["DEADLINE", "MeetingTraining", "MeetingWorker", "SimulatedMeeting"]

DEADLINE, TIMEOUT = 10.0, 60.0
"""Seconds of the meeting's deadline and timeout."""

UNITS = 128
"""Local steps of one name, in all of its processes."""

SHIFT = 31
"""Places by which those of a shard are further than those of the shard before."""


@dataclass(frozen=True)
class SimulatedMeeting(Meeting):
    """A meeting of workers on simulated machines.

    Args:
        machine: machine of the worker.
        mesh: mesh of its island; None: it is none.
    """

    machine: Any = None
    mesh: Any = None

    @property
    def on_all_ranks(self) -> dict[str, Any]:
        """Return the arguments that must be the same on all ranks of a worker."""
        return {name: value for name, value in super().on_all_ranks.items() if name not in ("machine", "mesh")}

    def island(self) -> Island:
        """Make the island that this rank is in."""
        return SimulatedIsland(self.mesh)

    @property
    def system(self) -> BaseSystem:
        """The machine of the worker."""
        system: BaseSystem = self.machine
        return system

    def thread(self) -> Worker:
        """Make a thread of this machine."""
        return SimulatedFlights(self.machine)


class SimulatedFlights(Worker):
    """The thread that exchanges fragments, on a simulated machine.

    Args:
        machine: machine of the worker.
    """

    def __init__(self, machine: SimulatedMachine) -> None:
        super().__init__()
        self.machine = machine

    def submit(self, job: Callable[[], Tensor]) -> Future[Tensor]:
        """Run a job; one is under way at a time."""
        future: Future[Tensor] = Future()

        def work() -> None:
            try:
                future.set_result(job())
            except Exception as error:
                self._failed.append(error)
                future.set_exception(error)  # type: ignore[arg-type]

        self.machine.start(work, name="flight")
        return future

    def result(self, future: Future[Tensor]) -> Tensor:
        """Wait for a job; raise what it raised."""
        self.machine.scheduler.wait(future.done)
        return super().result(future)


@dataclass(frozen=True)
class MeetingTraining(SimulatedWork):
    """The rounds of a meeting.

    Args:
        first: workers that must have come before the first round.
        rounds: rounds of the training.
        every: local steps in a round.
        sparse: true: one element is sent in a round, and the others wait in a residual; false: all are sent.
        outer: true: the outer step has momentum, and values do not say which steps count.
        frozen: true: there is a parameter that nobody trains.
        save: local steps from one checkpoint to the next.
        early: rounds before the end in which the last worker leaves.
        back: round after which the last worker leaves and joins again at once; 0: none.
        weighs: true: workers count by the local steps that they have made; false: all alike.
        fragments: fragments of the model, each of which is exchanged alone while the worker trains on; 0: none.
        delay: local steps for which a fragment is under way.
        quorum: workers with which a round may close before its deadline; 0: all.
        ranks: ranks of each worker; of four, two hold the same shard.
    """

    first: int = 2
    rounds: int = 4
    every: int = 1
    sparse: bool = False
    outer: bool = False
    frozen: bool = False
    save: int = 1
    early: int = 0
    back: int = 0
    weighs: bool = False
    fragments: int = 0
    delay: int = 0
    quorum: int = 0
    ranks: int = 1

    @classmethod
    def draw(cls, source: random.Random) -> Self:
        """Draw a workload."""
        choose = source.choice
        workers = choose([1, 2, 2, 3, 3, 4])
        drawn = cls(
            workers=workers,
            first=choose([workers, workers, max(1, workers - 1), 1]),
            rounds=choose([3, 4, 6]),
            every=choose([1, 1, 2]),
            sparse=choose([False, False, True]),
            outer=source.random() < 0.15,
            frozen=source.random() < 0.2,
            save=choose([1, 1, 2, 3]),
            early=choose([0, 0, 1, 2]),
            back=choose([0, 0, 0, 1, 2]),
            pace=choose([0.3, 1.0, 1.0]),
            late=choose([0.0, 0.0, 0.0, 2.0, 15.0]),
            weighs=source.random() < 0.4,
        )
        fragments = choose([0, 0, 1, 2, 2])
        if not fragments:
            return drawn
        every = fragments * choose([1, 2])
        delay, quorum = choose(range(every // fragments + 1)), choose([0, 1, workers])
        return replace(drawn, outer=False, fragments=fragments, every=every, delay=delay, quorum=quorum)

    @property
    def length(self) -> int:
        """The local steps of a worker."""
        return self.rounds * self.every

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the mesh of an island."""
        return (2, 2) if self.ranks == 4 else (self.ranks,)


class MeetingWorker:
    """The script of one process of a worker.

    Args:
        work: workload of the run.
        rank: number of the worker, which is its name.
        store: store at the place.
        machine: machine that it runs on.
        saved: checkpoint from which it continues; None: there is none.
        mesh: mesh of its island; None: it is none.

    Attributes:
        shard: number of its rank, whose parameters and local steps are other than those of the other ranks.
        steps: local steps that must count or wait, with their fragments: those of this process, and those before its
            checkpoint.
        loaded: those before its checkpoint.
        joined: true if it takes part in rounds.
        made: local steps of this process.
    """

    def __init__(
        self,
        work: MeetingTraining,
        rank: int,
        store: SimulatedStore,
        machine: SimulatedMachine,
        saved: Any,
        mesh: SimulatedMesh | None = None,
    ) -> None:
        self.work, self.rank, self.machine, self.store = work, rank, machine, store
        self.shard = 0 if mesh is None else mesh.rank
        self.weights = [nn.Parameter(torch.zeros(work.workers, UNITS)) for _ in range(max(1, work.fragments))]
        self.start = nn.Parameter(torch.full((2,), 1.0 + rank + 10 * self.shard))
        self.params = {**{f"{i}.weight": each for i, each in enumerate(self.weights)}, "0.start": self.start}
        if work.frozen:
            self.params["frozen"] = nn.Parameter(torch.full((3,), 1.0 + rank + 10 * self.shard), requires_grad=False)
        for each in self.params.values() if mesh is not None else ():
            # What a parameter of fully_shard says of itself; both are the same memory.
            vars(each).update(device_mesh=mesh, _local_tensor=each.detach())
        shared = (store, str(rank), work.first, DEADLINE, TIMEOUT, work.quorum or None)
        meeting = SimulatedMeeting(*shared, machine=machine, mesh=mesh)
        sends: dict[str, Any] = (
            {"compressor": "topk", "ratio": 1 / UNITS / 4} if work.sparse else {"compressor": "none"}
        )
        kind: Callable[..., LocalSteps] = diloco if work.outer else local_sgd
        if work.fragments:
            # An outer step that is the mean itself.
            sends |= {"lr": 1.0, "momentum": 0.0, "fragments": work.fragments, "delay": work.delay}
            kind = diloco
        inner = torch.optim.SGD([*self.params.items()], lr=1.0)
        weigh = "steps" if work.weighs else "workers"
        self.optimizer = kind(inner, **sends, every=work.every, min_numel=0, meeting=meeting, weigh=weigh)
        self.steps: set[tuple[int, int]] = set()
        self.loaded: frozenset[tuple[int, int]] = frozenset()
        self.joined = False
        self.made = 0
        if saved is not None:
            params, state, self.steps = copy.deepcopy(saved)
            with torch.no_grad():
                for param, value in zip(self.params.values(), params, strict=True):
                    param.copy_(value)
            self.optimizer.load_state_dict(state)
            self.loaded = frozenset(self.steps)

    def checkpoint(self) -> Any:
        """Return a copy of all that the next process needs."""
        return copy.deepcopy(
            ([param.detach() for param in self.params.values()], self.optimizer.state_dict(), self.steps)
        )

    def state(self) -> bytes:
        """Return what all must have alike."""
        kept = [flat.data for _, flat in sorted(self.optimizer.kept().items())]
        return (
            torch.cat([*kept, *(each.detach() for each in self.params.values() if not each.requires_grad)])
            .numpy()
            .tobytes()
        )

    @property
    def round(self) -> int:
        """The round after which this worker's state is: of a fragment, where there are any."""
        return self.optimizer.exchange.step

    @property
    def under_way(self) -> bool:
        """Return whether a fragment is under way."""
        streams = getattr(self.optimizer, "streams", None)
        return streams is not None and bool(streams.under_way())

    def counted(self) -> Tensor:
        """Return what the agreed parameters say of each local step, by fragment, rank and number."""
        views = dict(zip((name for name, _ in self.optimizer.named), self.optimizer.agreed.views, strict=True))
        return self._turned(torch.stack([views[f"{i}.weight"] for i in range(len(self.weights))]))

    def _turned(self, values: Tensor, back: int = 1) -> Tensor:
        """Return values by the numbers of steps, which are at other places in each shard; -1: the other way round."""
        return torch.roll(values, -back * SHIFT * self.shard, dims=-1)

    @property
    def strange(self) -> bool:
        """Return whether parameters that nobody changes are those of another shard."""
        kept = [self.start, *(each for each in self.params.values() if not each.requires_grad)]
        return any(bool((each.detach() // 10 != self.shard).any()) for each in kept)

    def waiting(self) -> Tensor:
        """Return what waits here, by fragment, rank and number."""
        rounds = self.optimizer.rounds
        assert rounds is not None
        kept = self.optimizer.exchange.residuals.worker.get("residual", {})
        zero = torch.zeros(self.weights[0].numel())
        way = self._turned(self.counted(), -1) - torch.stack([each.detach() for each in self.weights])
        way += torch.stack([kept.get(f"{i}.weight", zero).view_as(each) for i, each in enumerate(self.weights)])
        if not self.work.fragments:
            # The weight is the first parameter.
            way[0] += rounds.late[: self.weights[0].numel()].view_as(way[0])
        return self._turned(way)

    def run(
        self, number: Callable[[], int], source: random.Random, report: Callable[[str, MeetingWorker], None]
    ) -> None:
        """Join, train and leave.

        Args:
            number: function that returns the number of the next local step of this name.
            source: source of the times between steps.
            report: called with "joins", "joined", "steps", "stepped" and "left", and with "save" where it saves.
        """
        work, optimizer = self.work, self.optimizer
        last = self.rank == work.workers - 1
        self._join(report)
        while optimizer.round < work.rounds - (work.early if last else 0):
            self.machine.sleep(work.pace * source.random())
            self._step(number())
            report("steps", self)
            before = optimizer.round
            optimizer.step()
            if optimizer.in_step or work.fragments:
                report("stepped", self)
            self.made += 1
            if self.made % work.save == 0:
                self.machine.sleep(0.1 * work.pace * source.random())
                report("save", self)
            if last and before < work.back <= optimizer.round:
                optimizer.leave()
                self._join(report)
        optimizer.leave()
        report("left", self)

    def _join(self, report: Callable[[str, MeetingWorker], None]) -> None:
        report("joins", self)
        self.optimizer.join()
        self.joined = True
        report("joined", self)

    def _step(self, number: int) -> None:
        for fragment, weight in enumerate(self.weights):
            weight.grad = torch.zeros_like(weight)
            weight.grad[self.rank, (number + SHIFT * self.shard) % UNITS] = -1.0
            self.steps.add((fragment, number))
        self.start.grad = torch.zeros_like(self.start)
