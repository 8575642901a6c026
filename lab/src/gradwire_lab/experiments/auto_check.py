"""Check of "auto": it is compared with plain DDP and with the best fixed method.

Invariants:
    * All that is compared is measured in one group of workers, in turns. "auto" first makes the steps in which it
      decides. Then there are rounds: in each of them plain DDP, every fixed method and "auto" make some steps, in
      another order in each round, so that a disturbance of the machine meets all of them. The first steps of a turn do
      not count.
    * A fixed method is set up anew in each of its turns, so that memory for one of them is enough. "auto" is set up
      once and lives on.
    * A cell is one model on one link, or on a link whose rate changes while the workers run. "auto" then has some steps
      to notice after each change, and each part is compared on its own.
    * A fixed method counts as keeping the budget if it satisfies what "auto" demands of its own choices: nothing is
      kept back where the budget does not permit it, and the variance that it adds, measured on the same gradients, is
      within the budget.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire import registry
from gradwire.auto.choices import Choice
from gradwire.auto.controller import AutoController
from gradwire.auto.probe import probe
from gradwire.compressors.base import Compressor
from gradwire.engine.plan import default_strategy
from gradwire.errors import GradwireError, GroupError, is_int, require
from gradwire.frontends.ddp import GradwireState
from gradwire.frontends.setup import is_auto
from gradwire_lab.bench.machine import environment
from gradwire_lab.bench.statistics import slowest_samples, summarise
from gradwire_lab.experiments import models
from gradwire_lab.experiments.auto_verdicts import PLAIN
from gradwire_lab.experiments.decisions import DecisionLog, Entry
from gradwire_lab.experiments.launch import launch
from gradwire_lab.experiments.method_text import parse_method
from gradwire_lab.experiments.replay import (
    DECIDING,
    WARM_UP,
    Contestant,
    Replayed,
    ReplayPlan,
    agreed,
    attached,
    digest_of,
    facts_of,
    time_exchange,
    wrapped,
)
from gradwire_lab.netlab import Link, Netlab, lab_for

__all__ = ["CHANGED", "METHODS", "ROUNDS", "MatrixCell", "measure", "read_links"]

METHODS = ("bf16", "qsgd", "twobit:threshold=auto", "topk:ratio=0.01", "powersgd:rank=4")
"""The fixed methods."""

CHANGED = 50
"""Steps that "auto" has to notice that the link has changed."""

ROUNDS = 3
"""Turns of each contestant in each part."""

_PATIENCE = 60.0

Row = dict[str, Any]


@dataclass(frozen=True)
class MatrixCell:
    """One repeat of one model on one link.

    Args:
        model: name of the model in ``gradwire models``.
        workers: processes on this machine, 2 to 64.
        links: one; or several, which follow one another while the workers run, each with a rate.
        compute: seconds of a pretended backward pass, >= 0.
        repeat: number of this repeat of the measurement, from 0 on.
        small: the small variant of the model.
        steps: number of steps in which "auto" decides, and most steps that count for each contestant in each part, >=
            3.
        budget: seconds that the steps which count may take, of each contestant in each part, > 0; three are made in
            any case.
        methods: fixed ones, as they are written.
        auto: "auto", with its parameters.
        gradients: kind of the gradients, as in ``ReplayPlan``.

    Raises:
        ConfigError: a number out of range, no such model or method, or a link that cannot change.
    """

    model: str
    workers: int = 2
    links: tuple[Link, ...] = (Link(),)
    compute: float = 0.0
    repeat: int = 0
    small: bool = False
    steps: int = DECIDING
    budget: float = 60.0
    methods: tuple[str, ...] = METHODS
    auto: str = "auto"
    gradients: str = "trained"

    def __post_init__(self) -> None:
        require(bool(self.links), "MatrixCell.links", "at least one link", self.links)
        for link in self.links:
            link.in_lab()
            self.plan(link)
        shaped = len(self.links) == 1 or all(link.rate is not None for link in self.links)
        require(shaped, "MatrixCell.links", "links with a rate, where it changes", self.link)
        require(is_int(self.repeat, 0), "MatrixCell.repeat", "an integer >= 0", self.repeat)
        require(is_auto(self.auto), "MatrixCell.auto", "auto, or auto:PARAMETER=VALUE,...", self.auto)
        _ = self.contestants

    def plan(self, link: Link) -> ReplayPlan:
        """The plan of the replay on one of the links."""
        return ReplayPlan(
            self.model, self.small, self.workers, link, self.steps, self.budget, self.compute, self.gradients
        )

    @property
    def contestants(self) -> list[Contestant]:
        """All contestants; "auto" is the last one."""
        fixed = [Contestant(text, parse_method(text)) for text in self.methods]
        return [Contestant(PLAIN), *fixed, Contestant(self.auto, self.auto)]

    @property
    def link(self) -> str:
        """The links as one text, as ``read_links`` takes it."""
        return ",".join(map(str, self.links))

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits, which are equal for equal cells in every process and on every machine."""
        known = {**asdict(self), "links": self.link, "compute": float(self.compute), "budget": float(self.budget)}
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def read_links(text: str) -> tuple[Link, ...]:
    """Read a link, or several that follow one another.

    Raises:
        ConfigError: the text is not of the form of a link.

    Example:
        >>> [str(link) for link in read_links("1gbit,50mbit+20ms,1gbit")]
        ['1gbit', '50mbit+20ms', '1gbit']
    """
    return tuple(Link.read(part.strip()) for part in text.split(","))


@dataclass(frozen=True)
class PartTimes:
    """The measurements of one worker while the link stayed the same.

    Args:
        seconds: seconds of the steps that counted, by contestant, in the order in which they were made.
        deciding: seconds of the steps of "auto" before them.
        digests: digests of the gradients at the end of each turn.
    """

    seconds: dict[str, list[float]]
    deciding: list[float]
    digests: list[str]


@dataclass
class Outcome:
    """The measurements of one worker in a cell.

    Args:
        parts: one for each link.
        errors: the variance that a fixed method adds, as a share of that of the batch; infinite: it keeps back what it
            may not.
        allowed: the budget of "auto".
        decisions: decisions of "auto" over time.
    """

    parts: list[PartTimes] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    allowed: float = 0.0
    decisions: list[Entry] = field(default_factory=list)


def measure(cell: MatrixCell) -> Row:
    """Measure a cell and return its row, ready for JSON; a failure is a row with an ``error``.

    Args:
        cell: cell to measure.

    Raises:
        ConfigError: a link needs root or iproute2, and there is none.
    """
    slowest = min(cell.links, key=lambda link: link.rate or math.inf)
    with lab_for(cell.workers, cell.links[0]) as lab, tempfile.TemporaryDirectory() as folder:
        row = {"kind": "auto", "id": cell.id, **facts_of(cell.plan(slowest), lab), "link": cell.link}
        row |= {"repeat": cell.repeat, "steps": cell.steps, "budget": float(cell.budget), "auto": cell.auto}
        try:
            with _changed(lab, cell.links, Path(folder)):
                found = launch(cell.workers, alternate, cell, folder, timeout=cell.plan(slowest).patience, lab=lab)
            row |= _figures(cell, found)
        except GradwireError as error:
            row["error"] = " ".join(str(error).split())
    return row | environment() | {"threads": 1}


def _figures(cell: MatrixCell, found: Sequence[Outcome]) -> Row:
    if any([part.digests for part in each.parts] != [part.digests for part in found[0].parts] for each in found):
        raise GroupError("workers ended with different gradients")
    mine = found[0]
    return {
        "parts": [_part([each.parts[number] for each in found], link) for number, link in enumerate(cell.links)],
        # JSON has no number for what is infinite.
        "errors": {name: error if math.isfinite(error) else None for name, error in mine.errors.items()},
        "allowed": mine.allowed,
        "decisions": mine.decisions,
    }


def _part(parts: Sequence[PartTimes], link: Link) -> Row:
    methods = {}
    for label in parts[0].seconds:
        samples = slowest_samples(part.seconds[label] for part in parts)
        step = summarise(samples)
        methods[label] = {"seconds": step.median, "low": step.low, "high": step.high, "samples": samples}
    deciding = slowest_samples(part.deciding for part in parts)
    return {"link": str(link), "methods": methods, "deciding": deciding}


@contextmanager
def _changed(lab: Netlab | None, links: Sequence[Link], folder: Path) -> Iterator[None]:
    """Give the lab its next link whenever all workers have finished a part, which they announce by files."""
    done, failed = threading.Event(), list[GradwireError]()

    def change() -> None:
        assert lab is not None
        for number, link in enumerate(links[1:], 1):
            while not (folder / f"reached-{number}").exists():
                if done.wait(0.02):
                    return
            rate, _, delay = str(link).partition("+")
            try:
                lab.shape(rate, delay or "0ms")
            except GradwireError as error:
                failed.append(error)
                return
            (folder / f"changed-{number}").touch()

    changer = threading.Thread(target=change, daemon=True)
    if len(links) > 1:
        changer.start()
    try:
        yield
    except GradwireError:
        if failed:
            raise failed[0] from None
        raise
    finally:
        done.set()
        if changer.ident is not None:
            changer.join()


def _reach(number: int, folder: Path) -> None:
    """Wait until the link of a part is there.

    Raises:
        GroupError: the link did not come within a minute.
    """
    if number == 0:
        return
    dist.barrier()
    (folder / f"reached-{number}").touch()
    deadline = time.monotonic() + _PATIENCE
    while not (folder / f"changed-{number}").exists():
        if time.monotonic() > deadline:
            raise GroupError(f"the link was not changed within {_PATIENCE:g} s")
        time.sleep(0.01)


def alternate(cell: MatrixCell, folder: str) -> Outcome:
    """Make all turns of a cell, on each worker."""
    shapes = models.facts(cell.model, small=cell.small).shapes
    replayed = Replayed(shapes, cell.compute, dist.get_rank(), cell.gradients)
    *fixed, steered = cell.contestants
    outcome = Outcome()
    with Turn(replayed, steered) as auto:
        controller = auto.controller
        time_exchange(auto.model)
        # The first step is uncompressed: what it leaves is the mean gradient.
        noise = Noise.of(replayed, auto.replayed)
        outcome.allowed = controller.budget.variance
        outcome.errors = {each.label: noise.added(replayed, each, controller) for each in fixed if each.compressor}
        for number, _ in enumerate(cell.links):
            _reach(number, Path(folder))
            deciding = auto.steps(cell.steps if len(cell.links) == 1 else max(cell.steps, CHANGED))
            part = PartTimes({each.label: [] for each in cell.contestants}, deciding, [])
            for turn in range(ROUNDS):
                _round(cell, replayed, auto, part, turn)
            outcome.parts.append(part)
        outcome.decisions = auto.log.entries
    return outcome


def _round(cell: MatrixCell, replayed: Replayed, auto: Turn, part: PartTimes, turn: int) -> None:
    contestants = cell.contestants
    # Everybody's neighbours are others in each round.
    shift = turn * len(contestants) // ROUNDS
    for each in (*contestants[shift:], *contestants[:shift]):
        if each.label == cell.auto:
            _counted(cell, auto, part, 1)
        else:
            with Turn(replayed, each) as opened:
                _counted(cell, opened, part, WARM_UP)


def _counted(cell: MatrixCell, turn: Turn, part: PartTimes, warm_up: int) -> None:
    once = turn.steps(warm_up)[-1]
    count = agreed(once, math.ceil(cell.steps / ROUNDS), cell.budget / ROUNDS, 1)
    part.seconds[turn.label] += turn.steps(count)
    part.digests.append(digest_of(turn.replayed))
    turn.replayed.zero_grad(set_to_none=True)


class Turn:
    """A contestant that is set up: the replayed model of the same gradients in DDP, and its exchange.

    Args:
        replayed: model whose gradients are exchanged.
        contestant: way in which they are exchanged.
    """

    def __init__(self, replayed: Replayed, contestant: Contestant) -> None:
        self.label, self.replayed, self.log = contestant.label, replayed.again(), DecisionLog()
        self.model: DistributedDataParallel = wrapped(self.replayed, contestant)
        self.state: GradwireState | None = attached(self.model, contestant)
        self._made = 0

    @property
    def controller(self) -> AutoController:
        """The controller of "auto"."""
        found = None if self.state is None else self.state.exchange.controller
        assert isinstance(found, AutoController)
        return found

    def steps(self, count: int) -> list[float]:
        """Make steps, and return the seconds of each."""
        seconds = []
        for _ in range(count):
            seconds.append(time_exchange(self.model))
            self._made += 1
            self.log.note(self._made, None if self.state is None else self.state.exchange)
        return seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.state is not None:
            # The state's process group serves the next turn.
            self.state.close()


@dataclass(frozen=True)
class Noise:
    """The norms relative to which an error is measured, with the same numbers on all workers.

    Args:
        own: the mean over the workers of the squared norms of their gradients.
        mean: the squared norm of the mean gradient.
        workers: number of workers.
    """

    own: float
    mean: float
    workers: int

    @classmethod
    def of(cls, own: Replayed, averaged: Replayed) -> Noise:
        """Compute the norms from a worker's gradients, and from gradients after an uncompressed exchange."""
        squares = torch.zeros(2, dtype=torch.float64)
        for value, param in zip(own.tensors, averaged.tensors, strict=True):
            assert param.grad is not None
            squares += torch.stack([each.detach().square().sum(dtype=torch.float64) for each in (value, param.grad)])
        dist.all_reduce(squares)
        mine, mean = (squares / dist.get_world_size()).tolist()
        return cls(mine, mean, dist.get_world_size())

    def added(self, replayed: Replayed, contestant: Contestant, controller: AutoController) -> float:
        """The variance that a fixed method adds to the mean, over that of the batch; infinite if the method is not
        allowed.

        Args:
            replayed: model with this worker's gradients.
            contestant: contestant with a compressor.
            controller: controller of "auto", which has the budget, and whose exchange says what is left uncompressed.
        """
        compressor = contestant.compressor
        assert isinstance(compressor, Compressor)
        strategy = registry.build("strategies", default_strategy(compressor, self.workers))
        choice = Choice(compressor, strategy, contestant.label)
        if choice.keeps and not (controller.budget.kept and controller.bears()):
            return math.inf
        shapes = [(name, tuple(param.shape)) for name, param in replayed.named_parameters()]
        flat = torch.cat([param.detach().flatten() for param in replayed.tensors])
        probed = probe(controller.exchange, choice, lambda _: compressor, flat, shapes, self.workers)
        noise = max(0.0, self.own - self.mean) / (self.workers - 1)
        if probed is None:
            return 0.0
        worst = torch.tensor(probed.omega, dtype=torch.float64)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        return float(worst) * (self.own / self.workers + (self.mean if choice.twice(self.workers) else 0.0)) / noise
