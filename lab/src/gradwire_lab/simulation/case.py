"""Case of a simulation: a seed, a workload and faults, all in one line, which replays it."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, TypeVar

from torch import Tensor

from gradwire.errors import ConfigError

__all__ = ["NEVER", "Fault", "RunOutcome", "SimulatedCase", "SimulatedWork", "shrink"]

NEVER = 999.0
"""Seconds after which nothing comes again."""


@dataclass(frozen=True)
class Fault:
    """A fault.

    Args:
        kind: name of what happens, which its simulation knows.
        target: "server-0", "worker-1", "place", of a connection "worker-1~server-0", or "all" processes.
        at: seconds after the start, or after ``since``.
        seconds: duration, or the time until the restart; of "jump" the seconds that the clock gains.
        since: "finishing" or "finished": when the target, or where it is none the first worker, is about to finish,
            or has; "": the start.
        count: operations that a killed process still does, or messages that a cut connection still takes; of "stop",
            n stops it at its nth look at its clock; of "job", 1 also starts those again that had ended.
    """

    kind: str
    target: str
    at: float
    seconds: float
    since: str = ""
    count: int = 0

    def __str__(self) -> str:
        return f"{self.kind}={self.target}@{self.since}{self.at:g}+{self.seconds:g}" + (
            f"#{self.count}" if self.count else ""
        )

    @classmethod
    def parse(cls, word: str) -> Fault | None:
        """Read a fault as ``str`` writes it; None: it is something else."""
        found = re.fullmatch(r"(\w+)=([\w~-]+)@([a-z]*)([\d.e-]+)\+([\d.e-]+)(?:#(\d+))?", word)
        if found is None:
            return None
        kind, target, since, at, seconds, count = found.groups()
        return cls(kind, target, float(at), float(seconds), since, int(count or 0))


@dataclass(frozen=True)
class SimulatedWork:
    """Work of the workers of a run: a dataclass whose fields are numbers, truth values and words.

    Args:
        workers: number of workers.
        pace: seconds that a step takes at most.
        late: seconds by which the last worker starts later.
    """

    workers: int = 2
    pace: float = 1.0
    late: float = 0.0

    @classmethod
    def draw(cls, source: random.Random) -> Self:
        """Draw a workload."""
        raise NotImplementedError

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        """Read the fields that differ from the defaults, as ``str`` writes them."""
        readers: dict[type, Callable[[str], Any]] = {bool: lambda text: text == "1", int: int, float: float, str: str}
        kinds = {each.name: readers[type(each.default)] for each in fields(cls)}
        pairs = [word.partition("=") for word in words]
        return cls(**{name: kinds[name](text) for name, _, text in pairs})

    def __str__(self) -> str:
        values = ((each.name, getattr(self, each.name), each.default) for each in fields(self))
        return " ".join(
            f"{name}={+value if isinstance(value, int) else value}"
            for name, value, default in values
            if value != default
        )

    @property
    def length(self) -> int:
        """The steps of a worker."""
        raise NotImplementedError


@dataclass(frozen=True)
class SimulatedCase:
    """A run that can be repeated.

    Args:
        seed: seed of all that is drawn while it runs.
        work: workload of its workers.
        faults: faults that happen.
    """

    seed: int
    work: SimulatedWork
    faults: tuple[Fault, ...] = ()

    training: ClassVar[type[SimulatedWork]]
    classes: ClassVar[Mapping[str, Callable[[random.Random, Any], list[Fault]]]]
    """Classes of faults by name, as functions that draw them."""

    needs: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Fields that a workload must have for a class of faults."""

    @classmethod
    def draw(cls, seed: int, name: str, work: Any = None) -> Self:
        """Draw a case of a class of faults, or of several as "cut+kill-server"."""
        source = random.Random(f"{name} {seed}")
        drawn = cls.training.draw(source) if work is None else work
        for each in name.split("+"):
            drawn = replace(drawn, **cls.needs.get(each, {}))
        return cls(seed, drawn, tuple(fault for each in name.split("+") for fault in cls.classes[each](source, drawn)))

    @classmethod
    def triples(cls, total: int) -> list[str]:
        """List triples of classes, so that each two are in one of them, and each triple is listed for some total."""
        names = [name for name in cls.classes if name != "none"]
        pairs = itertools.combinations(range(len(names)), 2)
        chosen = {frozenset((a, b, (total - a - b) % len(names))) for a, b in pairs}
        return ["+".join(names[i] for i in sorted(each)) for each in sorted(chosen, key=sorted)]

    def run(self, log: bool = False) -> RunOutcome:
        """Run the case.

        Args:
            log: true: keep all that happens as text.
        """
        raise NotImplementedError

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read a case as ``str`` writes it.

        Raises:
            ConfigError: the line is none.
        """
        words = line.split()
        faults = [Fault.parse(word) for word in words]
        try:
            work = cls.training.parse(
                [word for word, fault in zip(words[1:], faults[1:], strict=True) if fault is None]
            )
            return cls(int(words[0].removeprefix("seed=")), work, tuple(fault for fault in faults if fault is not None))
        except (LookupError, ValueError) as error:
            raise ConfigError(f"a case is as 'seed=1 workers=3 kill=server-0@1.5+4', got {line!r}: {error}") from None

    def __str__(self) -> str:
        return " ".join([f"seed={self.seed}", *str(self.work).split(), *map(str, self.faults)])


AnyCase = TypeVar("AnyCase", bound=SimulatedCase)


@dataclass
class RunOutcome:
    """The result of a run.

    Args:
        case: case that was run.
        violations: promises that did not hold, in words.
        digest: digest of all that happened, with its times.
        seconds: simulated seconds.
        seen: values that workers pulled from a store, by rank, step and key.
        log: all that happened, if it was asked for.
    """

    case: SimulatedCase
    violations: list[str]
    digest: str
    seconds: float
    seen: dict[tuple[int, int, str], Tensor]
    log: list[str]


def shrink(case: AnyCase, fails: Callable[[AnyCase], bool] = lambda case: bool(case.run().violations)) -> AnyCase:
    """Leave out faults of a failing case, one at a time, while it still fails."""
    for fault in case.faults:
        smaller = replace(case, faults=tuple(each for each in case.faults if each is not fault))
        if fails(smaller):
            return shrink(smaller, fails)
    return case
