"""Islands of a simulated meeting: ranks on machines of their own, which are one worker, and their connections.

Above the connections everything is the library's own code: what the ranks ask each other, and who of them asks.

Invariants:
    * A message takes time, and arrives also if its sender is killed meanwhile.
    * A rank that waits for one whose process has ended gets an error, as from a connection that was closed.
    * Ranks that make different calls at the same time are found: real ones would wait for each other for ever.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import GroupError
from gradwire.metrics import Metrics
from gradwire.optim.local.meeting import Island
from gradwire.transport.channel import Channel
from gradwire_lab.simulation.machine import SimulatedMachine
from gradwire_lab.simulation.scheduler import Killed

__all__ = ["IslandJob", "SimulatedIsland", "SimulatedMesh"]

PATIENCE = 1800.0
"""Seconds that a message takes at most, where nothing is said."""


class IslandJob:
    """The processes of an island, which are started and end together.

    Args:
        machines: machine of each rank.
        shape: shape of their mesh.
        mixed: true: they were given checkpoints of different steps.

    Attributes:
        messages: call and value of each message and its time of arrival, by connection, number of the call and sender.
        numbers: numbers of the local steps that they make, which are the same on all ranks.
    """

    def __init__(self, machines: Sequence[SimulatedMachine], shape: Sequence[int], *, mixed: bool) -> None:
        self.machines, self.mixed = list(machines), mixed
        self.mesh = torch.arange(math.prod(shape)).view(*shape)
        self.messages: dict[tuple[str, int, int], tuple[str, Any, float]] = {}
        self.numbers: list[int] = []


class SimulatedMesh:
    """The mesh of an island, as one of its ranks sees it, with the names of a ``DeviceMesh``.

    Args:
        job: processes of the island.
        rank: number of this one.
    """

    def __init__(self, job: IslandJob, rank: int) -> None:
        self.job, self.rank, self.mesh, self.shape = job, rank, job.mesh, tuple(job.mesh.shape)
        self._lines = 0

    def get_coordinate(self) -> list[int]:
        """Return the place of this rank."""
        return [int(each) for each in (self.mesh == self.rank).nonzero()[0]]

    def line(self, dim: int, seconds: float) -> SimulatedLine:
        """Make the next connection along a dimension."""
        at: list[Any] = self.get_coordinate()
        at[dim] = slice(None)
        self._lines += 1
        return SimulatedLine(self, self.mesh[tuple(at)].tolist(), f"line {self._lines}", seconds)


class SimulatedLine(Channel):
    """A connection of the ranks along a dimension.

    Args:
        mesh: mesh of this rank.
        members: ranks that it connects.
        name: name that it has on all of them.
        seconds: seconds that a message takes at most.
    """

    def __init__(self, mesh: SimulatedMesh, members: list[int], name: str, seconds: float) -> None:
        super().__init__(None, Metrics())
        self.members, self.rank, self.world = members, members.index(mesh.rank), len(members)
        self.peers = [j for j in range(self.world) if j != self.rank]
        self._mesh, self._name, self._seconds, self._calls = mesh, name, seconds, 0
        process, scheduler = self._machine.simulated, self._machine.scheduler
        for machine in (mesh.job.machines[member] for member in members if member != mesh.rank):
            machine.simulated.on_death.append(lambda: scheduler.after(1e-3, scheduler.touch, process))

    @property
    def _machine(self) -> SimulatedMachine:
        return self._mesh.job.machines[self._mesh.rank]

    def share(self, value: Any, source: int) -> Any:
        own = source == self._mesh.rank
        found = self._call(f"shares {source}", pickle.dumps(value) if own else None, [] if own else [source])
        return value if own else pickle.loads(found[0])

    def all_reduce(self, tensor: Tensor, how: str = "sum") -> None:
        rows = torch.stack(self._call(f"reduces {how} {tensor.numel()}", tensor.clone(), self.members))
        tensor.copy_(rows.amax(0) if how == "max" else rows.sum(0))

    def begin_rows(self, rows: Tensor) -> Callable[[], None]:
        found = self._call(f"compares {rows.size(1)}", rows[self.rank].clone(), self.members)
        rows.copy_(torch.stack(found))
        return lambda: None

    def _call(self, call: str, value: Any, sources: Sequence[int]) -> list[Any]:
        """Send a value to all; return those of some ranks.

        Raises:
            GroupError: one of them has ended, or does not answer.
            AssertionError: one of them is in another call.
        """
        machine, job = self._machine, self._mesh.job
        scheduler, number = machine.scheduler, self._calls
        self._calls += 1
        machine.clock()
        if self.failed is not None:
            raise self.failed
        dies = machine.simulated.operate(f"{self._name} {call}")
        if not dies or scheduler.random.random() < 0.5:
            delay = machine.network.delay()
            job.messages[self._name, number, self._mesh.rank] = (call, value, scheduler.now + delay)
            for member in self.members:
                scheduler.after(delay, scheduler.touch, job.machines[member].simulated)
        if dies:
            raise Killed

        def there(source: int) -> bool:
            message = job.messages.get((self._name, number, source))
            return message is not None and (message[2] <= scheduler.now or source == self._mesh.rank)

        def gone() -> list[int]:
            # What it has sent before its end still arrives.
            awaited = (each for each in sources if (self._name, number, each) not in job.messages)
            return [each for each in awaited if not job.machines[each].process()]

        scheduler.wait(lambda: all(map(there, sources)) or gone(), self._seconds)
        missing = [source for source in sources if not there(source)]
        if missing:
            self.failed = GroupError(f"rank {missing[0]} of this worker is gone")
            raise self.failed
        found = [job.messages[self._name, number, source] for source in sources]
        wrong = [said for said, _, _ in found if said != call]
        assert not wrong, f"{self._name} {call} on rank {self._mesh.rank}, where another rank {wrong[0]}"
        return [value for _, value, _ in found]


class SimulatedIsland(Island):
    """The island of a simulated rank.

    Args:
        mesh: its mesh.
    """

    def __init__(self, mesh: SimulatedMesh) -> None:
        super().__init__(None, mesh.rank)
        self._mesh = mesh

    def check(self, params: Mapping[str, Any]) -> None:
        self.facts.update(shard=self.shard, cut={name: list(param.shape) for name, param in params.items()})

    def _line(self, dim: int, timeout: object, device: torch.device) -> Channel:
        line: Channel = self._mesh.line(dim, timeout if isinstance(timeout, float) else PATIENCE)
        return line
