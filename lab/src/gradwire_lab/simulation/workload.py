"""Workloads: what the workers of a simulated run train, and what the values say about the pushes that count.

A value says which pushes count where the optimizer adds them up (``counted``): the push of a rank and step is 1 in a
place of its own. Elsewhere each worker must see, bit for bit, the values of a run without faults (``compared``).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import GradwireError
from gradwire.kvstore.protocol.environment import WorkerPlace
from gradwire.kvstore.worker.store import DistStore
from gradwire_lab.simulation.case import SimulatedWork
from gradwire_lab.simulation.machine import SimulatedMachine

__all__ = ["SimulatedTraining", "gaps", "train"]

TIMEOUT = 60.0
"""Seconds that an answer may take: more than all that is documented, so whoever waits so long stands still."""


@dataclass(frozen=True)
class SimulatedTraining(SimulatedWork):
    """The keys, steps and settings of a training.

    Args:
        servers: number of servers.
        sync: true: dist_sync; false: dist_async.
        optimizer: name of the servers' optimizer; "none": the values are replaced.
        settings: true: a new setting in each step.
        bits: true: pushes are compressed to 2 bits.
        follow: true: answers are compressed.
        keys: number of keys, which are small and pushed in one call.
        cut: true: keys are cut over the servers.
        rows: true: keys are row-sparse.
        barrier: steps after which all meet at a barrier; 0: never.
        steps: steps of rank 0.
        uneven: steps by which each rank makes fewer than the one before it.
        snapshot: steps from one snapshot to the next; 0: there is none.
        proceed: true: steps are made without dead workers.
        pull: steps from one pull to the next.
        exits: true: a worker ends as a script does; false: it calls ``finish``.
        refused: true: each worker also makes a request that is refused, and goes on.
        staleness: steps that a worker of an async store may be ahead of the slowest; -1: any number.
    """

    servers: int = 1
    sync: bool = True
    optimizer: str = "test"
    settings: bool = False
    bits: bool = False
    follow: bool = False
    keys: int = 1
    cut: bool = False
    rows: bool = False
    barrier: int = 0
    steps: int = 6
    uneven: int = 0
    snapshot: int = 1
    proceed: bool = False
    pull: int = 1
    exits: bool = False
    refused: bool = False
    staleness: int = -1

    @classmethod
    def draw(cls, source: random.Random) -> SimulatedTraining:
        """Draw a workload; there are not many, so that what it gives without faults can be kept."""
        choose = source.choice
        sync = source.random() < 0.5
        kind = choose(["counted", "counted", "sgd", "adam", "none", "bits", "rows"])
        return cls(
            workers=choose([1, 2, 2, 3]),
            servers=choose([1, 1, 2]),
            sync=sync,
            optimizer=kind
            if kind in ("sgd", "adam", "none")
            else choose(["test", "sgd"])
            if kind == "rows"
            else "test"
            if kind == "counted"
            else "sgd",
            settings=kind in ("counted", "sgd") and choose([False, True]),
            bits=kind == "bits",
            follow=sync and kind in ("sgd", "adam", "none", "bits") and choose([False, True]),
            rows=kind == "rows",
            keys=choose([1, 1, 3]) if kind != "rows" else 1,
            cut=choose([False, True]),
            barrier=choose([0, 0, 2]),
            steps=choose([4, 8]),
            uneven=choose([0, 0, 2]),
            snapshot=choose([1, 1, 3, 10, 100]),
            proceed=choose([False, False, True]),
            pull=choose([1, 1, 3]),
            pace=choose([0.2, 1.0, 1.0]),
            exits=choose([False, True]),
            late=choose([0.0, 0.0, 0.0, 3.0]),
            refused=source.random() < 0.05,
            staleness=choose([-1, 2]) if kind == "counted" and not sync else -1,
        )

    @property
    def length(self) -> int:
        """The steps of a worker."""
        return self.steps

    @property
    def counted(self) -> bool:
        """Return whether a value says which pushes count."""
        return self.optimizer == "test"

    @property
    def own(self) -> bool:
        """Return whether each worker has keys of its own: the order of the others' pushes would change the value."""
        return not self.sync and not self.counted

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of a key."""
        return (self.workers, self.steps) if self.counted else (4, 24)

    def steps_of(self, rank: int) -> int:
        """Return the number of steps that a rank makes."""
        return max(1, self.steps - self.uneven * rank)

    def names(self, rank: int | None = None) -> list[str]:
        """List the keys, or those that a rank pushes."""
        if not self.own:
            return [f"w{i}" for i in range(self.keys)]
        ranks = range(self.workers) if rank is None else [rank]
        return [f"w{i} of {each}" for each in ranks for i in range(self.keys)]

    def weight(self, step: int) -> float:
        """Return what a push of a step adds to its place."""
        return step + 1.0 if self.settings else 1.0

    def gradient(self, rank: int, step: int, name: str) -> Tensor:
        """Make what a rank pushes in a step."""
        grad = torch.zeros(self.shape)
        if self.counted:
            grad[rank, step] = 1.0
        else:
            grad = ((torch.arange(96) * 7 + rank * 3 + step * 5 + int(name[1])) % 11 - 5).view(self.shape) / 8
        return sparse_rows(grad, [rank % len(grad), (rank + step) % len(grad)]) if self.rows else grad

    def setting(self, step: int) -> dict[str, float]:
        """Return the numbers of the optimizer in a step."""
        at = step + 1 if self.settings else 1
        return {
            "test": {"rescale_grad": float(at)},
            "sgd": {"learning_rate": 0.5 / at, "momentum": 0.9},
            "adam": {"learning_rate": 0.125 / at},
        }[self.optimizer]


def sparse_rows(grad: Tensor, rows: Sequence[int]) -> Tensor:
    """Make a row-sparse gradient of some rows of a dense one."""
    chosen = torch.tensor(sorted(set(rows)))
    return torch.sparse_coo_tensor(chosen[None], grad[chosen], grad.shape, check_invariants=True)


def train(
    work: SimulatedTraining,
    rank: int,
    endpoints: Sequence[str],
    machine: SimulatedMachine,
    source: random.Random,
    report: Callable[[str, int, dict[str, Tensor]], None],
) -> None:
    """Run the script of a worker.

    Args:
        work: workload of the run.
        rank: rank of the worker.
        endpoints: addresses of the servers.
        machine: machine that it runs on.
        source: source of the times between its steps.
        report: called with "pulled", the step and the values by their keys; with "begins", the first step and
            the versions of the keys; and with "finishing" and "finished".
    """
    place, bound = WorkerPlace(tuple(endpoints), rank, work.workers), 4 if work.counted else 64
    options: dict[str, Any] = {"bound": bound if work.cut else None, "timeout": TIMEOUT, "system": machine}
    options["staleness"] = work.staleness if work.staleness >= 0 else None
    kv = DistStore("dist_sync" if work.sync else "dist_async", place, **options)
    try:
        steps(kv, work, rank, machine, source, report)
        report("finishing", 0, {})
        if work.exits:
            machine.exit()
        else:
            kv.finish()
        report("finished", 0, {})
    finally:
        kv.close()


def steps(
    kv: DistStore,
    work: SimulatedTraining,
    rank: int,
    machine: SimulatedMachine,
    source: random.Random,
    report: Callable[[str, int, dict[str, Tensor]], None],
) -> None:
    """Make the steps of a worker, from the one on that the servers do not have."""
    if work.bits or work.follow:
        pull = {"pull": {"type": "three_lc"}} if work.follow else {}
        kv.set_gradient_compression({**({"type": "2bit", "threshold": 0.5} if work.bits else {"type": "none"}), **pull})
    if work.optimizer != "none" and not work.settings:
        kv.set_optimizer(work.optimizer, **work.setting(0))
    zeros = torch.zeros(work.shape)
    kv.init(work.names(), [zeros.to_sparse(1) if work.rows else zeros for _ in work.names()])
    if work.refused:
        with contextlib.suppress(GradwireError):
            kv.init("complex", torch.zeros(2, dtype=torch.complex64))
    mine = work.names(rank)
    first = min(map(kv.version, mine))
    report("begins", first, {name: torch.tensor(kv.version(name)) for name in mine})
    for step in range(first, work.steps_of(rank)):
        machine.sleep(work.pace * source.random())
        if work.settings:
            kv.set_optimizer(work.optimizer, **work.setting(step))
        due = [name for name in mine if kv.version(name) == step]
        kv.push(due, [work.gradient(rank, step, name) for name in due])
        if (step + 1) % work.pull == 0 or step + 1 == work.steps_of(rank):
            report("pulled", step, pulled(kv, work, mine, step))
        if work.barrier and (step + 1) % work.barrier == 0:
            kv.barrier()


def pulled(kv: DistStore, work: SimulatedTraining, names: Sequence[str], step: int) -> dict[str, Tensor]:
    """Pull the values of keys; row-sparse ones in turns as rows and whole."""
    outs = [torch.full(work.shape, 7.0) for _ in names]
    if work.rows and step % 2:
        for name, out in zip(names, outs, strict=True):
            kv.row_sparse_pull(name, out, row_ids=torch.arange(work.shape[0]))
    else:
        kv.pull(list(names), outs, ignore_sparse=False)
    return dict(zip(names, outs, strict=True))


def gaps(work: SimulatedTraining, value: Tensor, first: Sequence[int], least: Sequence[int], whole: bool) -> list[str]:
    """Say which pushes count twice, in another step, or not although they must.

    Args:
        work: workload of the run, whose values are ``counted``.
        value: value of a key.
        first: steps of each rank that were made before it came.
        least: steps of each rank that must count, with those.
        whole: true if no push may count without those before it.
    """
    found = []
    for rank, row in enumerate(value.tolist()):
        counts = [count / work.weight(step) for step, count in enumerate(row)]
        last = max((step + 1 for step, count in enumerate(counts) if count), default=0) if whole else 0
        needed = max(least[rank], last)
        wrong = [
            step
            for step, count in enumerate(counts)
            if count not in (0, 1) or (first[rank] <= step < needed and not count)
        ]
        if wrong:
            found.append(f"pushes of worker {rank} count {counts}, of which {needed} must count once")
    return found
