"""Exchanges on ranks that are threads: what one hands to a collective the others read where it lies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.engine.exchange import Exchange
from gradwire.engine.part import Unit
from gradwire.engine.plan import Named
from gradwire.engine.policy import Policy
from gradwire.engine.residual_store import ResidualStore
from gradwire.errors import ConfigError
from gradwire.memory.base import Memory
from gradwire.metrics import Metrics
from gradwire.testing.ranks import run_ranks
from gradwire.transport.channel import Channel
from tests.contracts.test_compressors import FOLDER
from tests.golden import freeze as golden

WORLDS = (2, 3, 2, 3, 5)
"""Numbers of ranks in turn: many, which cost as much more, less often."""
SHAPES: list[Named] = [("a.weight", (24, 40)), ("a.bias", (33,)), ("b.weight", (700,))]
SEED = 3
MIN_NUMEL = 100
"""Above the size of the bias, which so travels dense."""


def places() -> dict[str, slice]:
    """The place of each parameter in the flat gradient."""
    found, lo = {}, 0
    for name, shape in SHAPES:
        found[name] = slice(lo, lo + torch.Size(shape).numel())
        lo = found[name].stop
    return found


PLACES = places()
N = max(place.stop for place in PLACES.values())
MATRIX = SHAPES[0][1]
COMPRESSORS: list[Compressor] = [
    next(each for each in golden.variants(FOLDER, name) if capabilities.pays_for(each, MATRIX))
    for name in registry.names("compressors")
    if name != "none"
]


def goes(compressor: Compressor, memory: Memory, strategy: str) -> bool:
    """Return whether the exchange takes them together."""
    try:
        Exchange(compressor, memory=memory, strategy=strategy)
        if isinstance(compressor, MultiRound):
            memory.compensate(torch.zeros(1), {name: torch.zeros(1) for name in memory.buffers})
    except ConfigError:
        return False
    return True


class Meeting:
    """The place where the threads of a group leave what they send."""

    def __init__(self, world: int, timeout: float = 60.0) -> None:
        self.world, self.left = world, [[] for _ in range(world)]
        self.barrier = threading.Barrier(world, timeout=timeout)

    def share(self, rank: int, tensors: Sequence[Tensor], take: Callable[[list[list[Tensor]]], None]) -> None:
        """Leave ``tensors``, take what all have left, and go when everybody has."""
        self.left[rank] = list(tensors)
        self.barrier.wait()
        take(self.left)
        self.barrier.wait()


class ThreadChannel(Channel):
    """One rank of a group of threads."""

    def __init__(self, meeting: Meeting, rank: int, metrics: Metrics) -> None:
        super().__init__(None, metrics)
        self.meeting, self.rank, self.world = meeting, rank, meeting.world

    def begin_all_reduce(self, tensor: Tensor, how: str = "sum") -> Callable[[], None]:
        total = tensor.clone()

        def take(left: list[list[Tensor]]) -> None:
            total.copy_(left[0][0])
            for (other,) in left[1:]:
                torch.maximum(total, other, out=total) if how == "max" else total.add_(other)

        if tensor.numel():
            self.meeting.share(self.rank, [tensor], take)
            tensor.copy_(total)
        return lambda: None

    def exchange(self, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> None:
        def take(left: list[list[Tensor]]) -> None:
            for peer, sent in enumerate(left):
                if peer != self.rank:
                    assert sent[self.rank].nbytes == receives[peer].nbytes
                    receives[peer].copy_(sent[self.rank])

        self.meeting.share(self.rank, sends, take)

    def broadcast(self, rows: Tensor) -> None:
        self.all_gather(rows)


@dataclass
class Step:
    """The tensors of a rank before a step and after it, all of them copies."""

    grad: Tensor
    out: Tensor
    before: dict[str, dict[str, Tensor]]
    after: dict[str, dict[str, Tensor]]
    states: dict[str, dict[str, Tensor]]
    owned_before: Tensor
    owned: Tensor
    total: Tensor


@dataclass
class Rank:
    """A rank's exchange, the steps that were watched, and the sum of all that came out, in float64."""

    exchange: Exchange
    steps: dict[int, Step] = field(default_factory=dict)
    total: Tensor = field(default_factory=lambda: torch.zeros(N, dtype=torch.float64))

    def units(self) -> list[Unit]:
        """The units that are compressed."""
        return self.exchange.plan(SHAPES).units


def exchange_in_threads(
    compressor: Compressor,
    world: int,
    steps: int,
    gradient: Callable[[int, int], Tensor],
    watched: Container[int] | None = None,
    **options: Any,
) -> list[Rank]:
    """Exchange ``gradient(step, rank)`` for steps from 0 on, and record those that are ``watched``; None: all."""
    meeting = Meeting(world)

    def work(rank: int) -> Rank:
        torch.set_num_threads(1)  # A thread begins with the number of the process, whatever the test has set.
        channel = ThreadChannel(meeting, rank, Metrics())
        made = Rank(Exchange(compressor, policy=Policy(min_numel=MIN_NUMEL), seed=SEED, channel=channel, **options))
        try:
            for step in range(steps):
                _step(made, step, gradient(step, rank), watched is None or step in watched)
        except BaseException:
            meeting.barrier.abort()
            raise
        return made

    return run_ranks(world, work)


def _step(made: Rank, step: int, grad: Tensor, watched: bool) -> None:
    residuals, flat = made.exchange.residuals, grad.clone()
    if watched:
        before, states, owned = _copied(residuals.worker), _copied(residuals.states), _owned(residuals)
    made.exchange.begin_step()
    made.exchange.run(flat, SHAPES)
    made.total += flat
    if watched:
        after = _copied(residuals.worker)
        made.steps[step] = Step(grad, flat, before, after, states, owned, _owned(residuals), made.total.clone())


def _copied(tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    return {outer: {name: tensor.clone() for name, tensor in of.items()} for outer, of in tensors.items()}


def _owned(residuals: ResidualStore) -> Tensor:
    """The residual of this rank as an owner of shards, 0 elsewhere."""
    total = torch.zeros(N)
    for name, views in residuals.owned.items():
        for _, lo, view in views:
            total[PLACES[name]][lo : lo + view.numel()] += view
    return total
