"""Advice on which method to use, and whether to compress: candidates in the order of their predicted steps.

Invariants:
    * A method is advised if its predicted step is at least ``MARGIN`` shorter than an uncompressed one, it trains with
      the loss and the optimizer as they are, and it is known to have reached the accuracy of uncompressed training.
    * If there is no such method, the advice is not to compress. But if a method that was not measured might be one, the
      advice is that nobody can tell.
    * The most that a method might gain is its step with a codec that takes no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.plan import default_strategy
from gradwire.engine.strategies.base import Strategy
from gradwire.errors import ConfigError
from gradwire.memory.base import default_memory
from gradwire_lab.advise.cluster import Cluster, worlds
from gradwire_lab.advise.codec import Codec
from gradwire_lab.advise.pipeline import PipelineStep
from gradwire_lab.advise.profile import Profile
from gradwire_lab.advise.quality import Quality, drop_in, quality
from gradwire_lab.experiments.recommended import setup_of

__all__ = [
    "MARGIN",
    "Advice",
    "AdviceRow",
    "Candidate",
    "advisable",
    "advise",
    "break_even",
    "plausible",
    "reachable",
]

MARGIN = 0.05
"""The share of a step that a method must save: less is not worth another source of error."""

ALIKE = 0.03
"""Methods whose steps differ by less than this share are told apart by their quality."""

SLOWEST, FASTEST = 1e6, 1e14
_STEPS = 160


@dataclass(frozen=True)
class Candidate:
    """A method that might be used.

    Args:
        label: name in ``gradwire_lab.experiments.recommended``, or the method as the command line has it.
        compressor: compressor with its parameters.
        strategy: registered name; None: the default for the number of workers.
        refusal: reason why the method does not suit the run; empty: it does.
    """

    label: str
    compressor: Compressor
    strategy: str | None = None
    refusal: str = ""

    def strategy_for(self, workers: int) -> str:
        """The strategy by which a method's payloads travel among so many workers."""
        return self.strategy or default_strategy(self.compressor, workers)

    def carrier(self, workers: int) -> Strategy:
        """The strategy of ``strategy_for``, built."""
        built: Strategy = registry.build("strategies", self.strategy_for(workers))
        return built

    def worlds(self, workers: int) -> Sequence[int]:
        """The numbers of workers with which its codec is measured for so many."""
        return worlds(self.carrier(workers), self.compressor, workers)


@dataclass(frozen=True)
class AdviceRow:
    """The prediction for a candidate.

    Args:
        label: label of the candidate.
        params: parameters of the candidate's compressor.
        strategy: strategy of the candidate's exchange.
        memory: name of the memory that keeps what was not sent between steps.
        step: the terms; None: nothing could be predicted.
        speedup: speed-up of a step over no compression.
        break_even: bits a second above which no compression is faster; 0: at every rate, infinite: at none.
        quality: known quality of the method; None: nothing is known.
        drop_in: true: the method trains with the loss and the optimizer as they are.
        settings: reason why the parameters are not the defaults, and requirements of the method; empty: none.
        reachable: the speed-up with a codec that takes no time, which no measurement can exceed; 0: it cannot be used.
        timed: elements that its codec was timed with, where that was scaled to the model's; 0: all of them.
        skipped: reason why there is no predicted step; else empty.
    """

    label: str
    params: Mapping[str, Any]
    strategy: str
    memory: str
    step: PipelineStep | None
    speedup: float
    break_even: float
    quality: Quality | None
    drop_in: bool
    settings: str
    reachable: float = 0.0
    timed: int = 0
    skipped: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the row for JSON, which has no infinity: a break-even of null means that there is none."""
        even = None if math.isinf(self.break_even) else self.break_even
        return asdict(self) | {"params": dict(self.params), "break_even": even}


@dataclass(frozen=True)
class Advice:
    """The rows, fastest first, and the conclusions from them.

    Args:
        dense: a step without compression.
        rows: rows of all candidates.
        best: the one to use; None: there is none among those that were measured.
    """

    dense: PipelineStep
    rows: tuple[AdviceRow, ...]
    best: AdviceRow | None

    @property
    def unknown(self) -> tuple[AdviceRow, ...]:
        """The rows that were not measured, and that might be advised or be faster than the best one."""
        least = 1 + MARGIN if self.best is None else self.best.speedup
        return tuple(row for row in self.rows if row.step is None and advisable(row) and row.reachable >= least)

    @property
    def compress(self) -> bool | None:
        """Return whether to compress; None if that is not known."""
        return True if self.best is not None else None if self.unknown else False

    @property
    def verdict(self) -> str:
        """The answer in words."""
        if self.best is None and self.unknown:
            return f"cannot tell: {self._open}"
        if self.best is None:
            return f"do not compress: {self._reason}"
        known, even = self.best.quality, self.best.break_even
        above = "at every rate that was tried" if math.isinf(even) else f"below {_shown(even)}"
        told = f"{known.points:+.1f} points on the digits with {known.workers} workers" if known else "not known"
        return (
            f"{self.best.label} over {self.best.strategy}: a step {self.best.speedup:.2f} times as fast as without "
            f"compression; it pays {above}; quality {told}"
        )

    @property
    def _open(self) -> str:
        measured = sum(row.step is not None for row in self.rows)
        none = f"none of the {measured} methods that were measured pays, but " if measured else ""
        first, *others = self.unknown
        more = f" and {len(others)} more" if others else ""
        return (
            f"{none}{first.label}{more} might, a step up to {max(row.reachable for row in self.unknown):.2f} times as "
            f"fast: {first.skipped}"
        )

    @property
    def _reason(self) -> str:
        able = [row for row in self.rows if row.step is not None and advisable(row)]
        if all(row.step is None and row.reachable == 0 for row in self.rows):
            return "; ".join(sorted({row.skipped for row in self.rows}))
        if not able and (possible := [row.reachable for row in self.rows if advisable(row) and row.reachable > 0]):
            return f"with whatever codec, no method to advise makes a step more than {max(possible):.2f} times as fast"
        if not able:
            return "no candidate is known to train as well, with the loss and the optimizer as they are"
        best = max(able, key=lambda row: row.speedup)
        return f"the fastest method to advise, {best.label}, would make a step {best.speedup:.2f} times as fast"

    def as_dict(self) -> dict[str, Any]:
        """Return the advice for JSON."""
        best = None if self.best is None else self.best.label
        return {
            "verdict": self.verdict,
            "compress": self.compress,
            "best": best,
            "dense": asdict(self.dense),
            "unknown": [row.label for row in self.unknown],
            "candidates": [row.as_dict() for row in self.rows],
        }


def _shown(bits: float) -> str:
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


def advise(
    profile: Profile, cluster: Cluster, candidates: Sequence[Candidate], codecs: Sequence[Codec | str]
) -> Advice:
    """Predict every candidate's step.

    Args:
        profile: profile of the model's step.
        cluster: machines on which the model is trained, and their links.
        candidates: methods to predict, at least one.
        codecs: one for each, measured for ``cluster.meeting`` workers; or why it was not measured.
    """
    dense = cluster.dense(profile)
    rows = [_row(profile, cluster, each, codec, dense) for each, codec in zip(candidates, codecs, strict=True)]
    rows.sort(key=lambda row: row.step.total if row.step else math.inf)
    return Advice(dense, tuple(rows), _best(rows))


def advisable(row: AdviceRow) -> bool:
    """Return whether a method is known to train as well without other changes."""
    return row.drop_in and row.quality is not None and row.quality.reached


def reachable(profile: Profile, cluster: Cluster, each: Candidate) -> float:
    """The speed-up of a candidate over no compression if its codec took no time; 0 if this run cannot use it."""
    if each.refusal:
        return 0.0
    try:
        capabilities.check_world(each.compressor, cluster.meeting)
    except ConfigError:
        return 0.0
    codec = Codec.at_rate(profile.buckets, 0.0, 0.0)
    jobs = cluster.jobs(profile, each.compressor, codec, each.strategy_for(cluster.meeting))
    return cluster.dense(profile).total / cluster.compressed(profile, jobs).total


def plausible(profile: Profile, cluster: Cluster, candidates: Sequence[Candidate]) -> list[int]:
    """Indices of the candidates, those likeliest to be advised first: by quality, then by ``reachable``."""
    known = [drop_in(each.label) and getattr(quality(each.label), "reached", False) for each in candidates]
    reach = [reachable(profile, cluster, each) for each in candidates]
    return sorted(range(len(candidates)), key=lambda i: (not known[i], -reach[i]))


def _best(rows: Sequence[AdviceRow]) -> AdviceRow | None:
    able = [row for row in rows if row.step is not None and advisable(row) and row.speedup >= 1 + MARGIN]
    if not able:
        return None
    fastest = max(row.speedup for row in able)
    alike = [row for row in able if row.speedup >= fastest * (1 - ALIKE)]
    return max(alike, key=lambda row: row.quality.points if row.quality else -math.inf)


def _row(profile: Profile, cluster: Cluster, each: Candidate, codec: Codec | str, dense: PipelineStep) -> AdviceRow:
    strategy = each.strategy_for(cluster.meeting)
    compressor = each.compressor
    told = (each.label, capabilities.properties(compressor)["params"], strategy, default_memory(compressor))
    known = (quality(each.label), drop_in(each.label), setup_of(each.label).reason)
    try:
        capabilities.check_world(compressor, cluster.meeting)
    except ConfigError as error:
        return AdviceRow(*told, None, 0.0, 0.0, *known, skipped=str(error))
    reach = reachable(profile, cluster, each)
    if each.refusal or isinstance(codec, str):
        return AdviceRow(*told, None, 0.0, 0.0, *known, reach, skipped=each.refusal or str(codec))

    jobs = cluster.jobs(profile, compressor, codec, strategy)
    predicted = cluster.compressed(profile, jobs)
    even = break_even(
        lambda bits: cluster.at(bits).compressed(profile, jobs).total,
        lambda bits: cluster.at(bits).dense(profile).total,
    )
    return AdviceRow(*told, predicted, dense.total / predicted.total, even, *known, reach, codec.timed)


def break_even(compressed: Callable[[float], float], dense: Callable[[float], float]) -> float:
    """The bandwidth above which no compression is at least as fast.

    Args:
        compressed: seconds of a step at a rate, bits a second.
        dense: the same without compression.

    Returns:
        Bits a second between 10^6 and 10^14; 0 where the method is never faster, infinite where it still is at the end.

    Example:
        >>> round(break_even(lambda bits: 1.0 + 1e6 / bits, lambda bits: 1e9 / bits) / 1e6)
        999
    """

    def faster(rate: float) -> bool:
        return compressed(rate) < dense(rate)

    factor = math.pow(FASTEST / SLOWEST, 1 / _STEPS)
    rates = [SLOWEST * math.pow(factor, i) for i in range(_STEPS + 1)]
    last = next((i for i in range(_STEPS, -1, -1) if faster(rates[i])), None)
    if last is None or last == _STEPS:
        return 0.0 if last is None else math.inf
    low, high = rates[last], rates[last + 1]
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if faster(middle) else (low, middle)
    return low
