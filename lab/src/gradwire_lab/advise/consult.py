"""Consultation of the advisor: it measures what was not given, and predicts the steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradwire import registry
from gradwire.auto.link_cost import MESSAGE, Wire
from gradwire.compressors.base import Compressor
from gradwire.engine.strategies.base import Strategy
from gradwire.errors import ConfigError, is_int, require
from gradwire_lab.advise.advice import Advice, Candidate, advisable, advise, plausible
from gradwire_lab.advise.cluster import Cluster
from gradwire_lab.advise.codec import SAMPLE, Codec, sample
from gradwire_lab.advise.gauge import Wanted, gauge_codecs, gauge_model, gauge_wire
from gradwire_lab.advise.profile import BucketProfile, Profile, assigned
from gradwire_lab.advise.run_optimizer import RunOptimizer
from gradwire_lab.advise.script import profile_script
from gradwire_lab.bench.machine import cores, environment
from gradwire_lab.experiments import models
from gradwire_lab.experiments.launch import OutOfTimeError
from gradwire_lab.experiments.method_text import parse_method
from gradwire_lab.experiments.recommended import RECOMMENDED, labels, recommended
from gradwire_lab.netlab import Link, Netlab
from gradwire_lab.netlab.link import PAYLOAD_SHARE

__all__ = ["Question", "UntimedError", "answer", "everything", "named", "on_the_link"]

BASELINE = "none"
GIVEN = "--optimizer"
MEASURED_WORKERS = 4
"""Most workers between which a link is measured."""

MOST_WORKERS = 100_000
"""Most workers of a prediction, which adds up the seconds of each shard of a bucket one by one."""

MODEL_SHARE, STEPS_SHARE, SAMPLE_SHARE = 0.5, 0.25, 0.8
"""Shares of --within: when the model's step is given up; seconds of its steps; when a codec's last sample is begun."""

FINALISTS = 5
"""Methods that are timed with the whole model, of those that may be advised."""

_STEPS = 3
"""Steps for which there must be time, or a measurement is not begun: two that warm up, and one that counts."""

UNKNOWN_OPTIMIZER = (
    "{} is not known: under Adam and its kin leave out every method that keeps a residual, as --optimizer adam does."
)

ON_THE_LINK = ("bf16", "twobit")
"""Methods whose bytes are shown where a step could not be timed."""


class UntimedError(ConfigError):
    """A step, or the link, could not be timed in time: what is left is the arithmetic of the link that was given."""


@dataclass(frozen=True)
class Question:
    """The question to answer; the options of ``gradwire advise`` say what each field means.

    Raises:
        ConfigError: a combination that has no answer.
    """

    model: str | None = None
    small: bool = False
    batch: int = 8
    script: Path | None = None
    arguments: Sequence[str] = ()
    deadline: float = 120.0
    compute: float | None = None
    link: Link = field(default_factory=lambda: Link.parse("1gbit", "100us"))
    measure_link: bool = False
    workers: int = 4
    nodes: int | None = None
    inside: Link | None = None
    together: int = 1
    methods: Mapping[str, Compressor] = field(default_factory=dict)
    strategy: str | None = None
    codec: tuple[float, float] | None = None
    budget: float = 6.0
    within: float = 40.0
    optimizer: str | None = None

    def __post_init__(self) -> None:
        if (self.model is None) == (self.script is None):
            raise ConfigError("one of --model and --script must be given, got " + ("both" if self.model else "none"))
        if self.model is not None:
            models.find(self.model)
        measured = self.compute is None
        require(measured or 0 <= (self.compute or 0) < math.inf, "--compute", "a finite number >= 0", self.compute)
        require(is_int(self.workers, 2, MOST_WORKERS), "--workers", f"in [2, {MOST_WORKERS}]", self.workers)
        require(0 < self.within < math.inf, "--within", "seconds > 0", self.within)
        require(self.link.rate is not None, "--link", "a rate, as 1gbit", "none")
        if self.measure_link:
            self.link.in_lab()
        if self.nodes is not None:
            right = self.workers % self.nodes == 0 and self.nodes < self.workers
            require(right, "--nodes", f"a divisor of the {self.workers} workers, and fewer", self.nodes)
        if self.optimizer is not None:
            RunOptimizer.named(self.optimizer, GIVEN)
        require(self.together <= self.workers, "--together", f"at most the {self.workers} workers", self.together)

    @property
    def meeting(self) -> int:
        """The number of participants that exchange compressed messages."""
        return self.nodes or self.workers

    @property
    def threads(self) -> int:
        """The number of threads of a worker on this machine."""
        return max(1, cores() // self.together)


def everything() -> dict[str, Compressor]:
    """Every registered method with its recommended settings."""
    return {label: recommended(label).compressor for label in labels() if label != BASELINE}


def named(text: str, parse: Callable[[str], Compressor]) -> Compressor:
    """Build the named methods; a bare name gets the recommended settings, as in ``gradwire check convergence``."""
    return recommended(text).compressor if text in RECOMMENDED or ":" not in text else parse(text)


def answer(asked: Question, progress: Callable[[str], object] = lambda _: None) -> tuple[Advice, dict[str, Any]]:
    """Measure what is missing and predict all candidates.

    Args:
        asked: the question.
        progress: function that is called with a line before each measurement.

    Returns:
        The advice, and the facts that it rests on, ready for JSON.

    Raises:
        ConfigError: a figure cannot be measured here.
    """
    candidates = [Candidate(label, each, asked.strategy) for label, each in asked.methods.items()]
    for each in candidates:
        each.carrier(asked.meeting).check(each.compressor)
    begun = time.time()
    profile, optimizer = profile_of(asked, progress, begun)
    if optimizer is not None:
        candidates = [replace(each, refusal=optimizer.refusal(each.compressor)) for each in candidates]
    # A script has a deadline of its own.
    begun = begun if asked.script is None else time.time()
    cluster = cluster_of(asked, progress, begun)
    codecs = codecs_of(asked, profile, cluster, candidates, progress, begun)
    advice = advise(profile, cluster, candidates, codecs)
    facts = {
        "title": _title(asked, profile),
        "notes": [*_scaled(advice, profile), *_notes(asked, candidates, optimizer), *_doubts(asked, profile, cluster)],
        "workers": asked.workers,
        "nodes": asked.nodes,
        "link": str(asked.link),
        "rate": cluster.wire.rate,
        "latency": cluster.wire.latency,
        "message": cluster.wire.message,
        "compute": profile.seconds,
        "optimizer": None if optimizer is None else optimizer.name,
        "parameters": profile.numel,
        "buckets": [{"elements": each.numel, "ready": each.ready} for each in profile.buckets],
    }
    return advice, facts | environment() | {"threads": asked.threads}


def on_the_link(asked: Question) -> list[dict[str, Any]]:
    """The bytes of a worker's step, and the seconds that they take on the link that was given, where no time of a step
    or of a codec is known: uncompressed, and by the methods of ``ON_THE_LINK``.
    """
    profile = assigned(list(models.facts(str(asked.model), small=asked.small).shapes.items()), 0.0)
    candidates = [_shown(name, asked) for name in ON_THE_LINK]
    codecs = [given_codec(profile, 0.0, 0.0, each, asked.meeting) for each in candidates]
    advice = advise(profile, cluster_of(replace(asked, measure_link=False), str, 0.0), candidates, codecs)
    steps = {"uncompressed": advice.dense} | {row.label: row.step for row in advice.rows if row.step is not None}
    return [{"method": name, "bytes": step.sent, "seconds": step.wire} for name, step in steps.items()]


def _shown(name: str, asked: Question) -> Candidate:
    """One of ``ON_THE_LINK`` by the strategy that was asked for, or by its own if that one does not carry it."""
    compressor = parse_method(name)
    candidate = Candidate(name, compressor, asked.strategy)
    try:
        candidate.carrier(asked.meeting).check(compressor)
    except ConfigError:
        return Candidate(name, compressor)
    return candidate


def profile_of(asked: Question, progress: Callable[[str], object], begun: float) -> tuple[Profile, RunOptimizer | None]:
    """Measure or read the step without an exchange, and find the optimizer; None: the model of the script has none.

    Raises:
        ConfigError: the step takes too long, or its time is not known.
    """
    if asked.script is not None:
        progress(f"running {asked.script} with one worker")
        found, optimizer = profile_script(asked.script, asked.arguments, deadline=asked.deadline)
        if asked.optimizer is not None:
            optimizer = RunOptimizer.named(asked.optimizer, GIVEN)
        return found if asked.compute is None else found.lasting(asked.compute), optimizer
    name = str(asked.model)
    if asked.optimizer is not None:
        optimizer = RunOptimizer.named(asked.optimizer, GIVEN)
    else:
        optimizer = RunOptimizer.of_model(name, small=asked.small)
    if asked.compute is not None:
        return assigned(list(models.facts(name, small=asked.small).shapes.items()), asked.compute), optimizer
    progress(f"training {name} on {asked.threads} threads, {asked.batch} examples a step")
    budget, until = STEPS_SHARE * asked.within, begun + MODEL_SHARE * asked.within
    try:
        profile = gauge_model(name, asked.batch, small=asked.small, threads=asked.threads, budget=budget, until=until)
    except OutOfTimeError:
        raise UntimedError(
            f"cannot tell: two steps of {name} on {asked.batch} examples take more than "
            f"{MODEL_SHARE * asked.within:.3g} s here. Give the seconds of a step (--compute), a smaller --batch, or "
            f"more time than --within {asked.within:g}"
        ) from None
    return profile, optimizer


def cluster_of(asked: Question, progress: Callable[[str], object], begun: float) -> Cluster:
    """Make the cluster from the links that were given or measured."""
    wire = wire_of(asked.meeting, asked.link)
    if asked.measure_link:
        workers = min(asked.meeting, MEASURED_WORKERS)
        progress(f"measuring the link between {workers} workers")
        try:
            with Netlab(workers, str(Link(asked.link.rate))) as lab:
                found = gauge_wire(workers, lab, begun + asked.within).wire(workers, asked.link)
        except OutOfTimeError:
            raise UntimedError(
                f"cannot tell: {asked.link} could not be measured in time. Leave --measure-link out, or give more time "
                f"than --within {asked.within:g}"
            ) from None
        # Of a worker's cores, as the cluster counts them: for each of its threads.
        wire = replace(found, workers=asked.meeting, cores=found.cores / asked.threads)
    inside = None if asked.inside is None else wire_of(asked.workers // asked.meeting, asked.inside)
    return Cluster(asked.workers, wire, inside, cores() / asked.together / asked.threads)


def wire_of(workers: int, link: Link) -> Wire:
    """The model of links that were given; their delay is the latency of a message, as it is asked for."""
    return Wire(workers, (link.rate or math.inf) / 8 * PAYLOAD_SHARE, link.delay, MESSAGE)


def codecs_of(
    asked: Question,
    profile: Profile,
    cluster: Cluster,
    candidates: Sequence[Candidate],
    progress: Callable[[str], object],
    begun: float,
) -> list[Codec | str]:
    """The codecs of the candidates, measured with one or two numbers of workers, or made of the given numbers.

    Of a large model every candidate is timed with a sample first, those first that are likely to be advised. Then those
    that are likely to be advised because of it are timed with the whole model, as far as there is time.

    Returns:
        One for each candidate; or why it was not measured.
    """
    if asked.codec is not None:
        return [given_codec(profile, *asked.codec, each, asked.meeting) for each in candidates]
    bucket = sample(profile.buckets)
    exact = profile.numel <= SAMPLE
    order = [i for i in plausible(profile, cluster, candidates) if not candidates[i].refusal]
    progress(f"timing {len(order)} methods" + ("" if exact else f" with {bucket.numel:,} elements each"))
    until = begun + (1.0 if exact else SAMPLE_SHARE) * asked.within
    chosen = [candidates[i] for i in order]
    found = dict(zip(order, _timed(asked, profile.buckets if exact else [bucket], chosen, until), strict=True))
    codecs = [found.get(i, each.refusal) for i, each in enumerate(candidates)]
    if exact:
        return codecs
    codecs = [each if isinstance(each, str) else each.scaled(bucket, profile.buckets) for each in codecs]
    final = _finalists(asked, advise(profile, cluster, candidates, codecs), candidates, codecs, begun)
    progress(f"timing {len(final)} of them with the whole model")
    whole = _timed(asked, profile.buckets, [candidates[i] for i in final], begun + asked.within)
    for i, each in zip(final, whole, strict=True):
        codecs[i] = codecs[i] if isinstance(each, str) else each
    return codecs


def _timed(
    asked: Question, buckets: Sequence[BucketProfile], candidates: Sequence[Candidate], until: float
) -> list[Codec | str]:
    """The candidates' codecs for these buckets, in this order."""
    wanted = [
        [Wanted(each.compressor, each.strategy_for(asked.meeting), count) for count in each.worlds(asked.meeting)]
        for each in candidates
    ]
    flat = [each for group in wanted for each in group]
    found = iter(
        gauge_codecs(buckets, flat, together=asked.together, threads=asked.threads, budget=asked.budget, until=until)
    )
    return [_reached(group, [next(found) for _ in group], asked.meeting) for group in wanted]


def _finalists(
    asked: Question, rough: Advice, candidates: Sequence[Candidate], codecs: Sequence[Codec | str], begun: float
) -> list[int]:
    """Indices of the candidates that may be advised, fastest first, as far as there is time to measure them."""
    places = {each.label: i for i, each in enumerate(candidates)}
    left, chosen = begun + asked.within - time.time(), []
    for row in [row for row in rough.rows if row.step is not None and advisable(row)][:FINALISTS]:
        codec = codecs[places[row.label]]
        counts = len(candidates[places[row.label]].worlds(asked.meeting))
        needed = math.inf if isinstance(codec, str) else _STEPS * codec.seconds
        if needed < asked.budget and counts * needed < left:
            chosen.append(places[row.label])
            left -= counts * needed
    return chosen


def given_codec(profile: Profile, encode: float, decode: float, each: Candidate, workers: int) -> Codec:
    """The codec that takes the given seconds for each element that a worker encodes and decodes."""
    encoded, decoded = each.carrier(workers).coded(each.compressor, workers)
    return Codec.at_rate(profile.buckets, encoded * encode, decoded * decode)


def _reached(group: Sequence[Wanted], found: Sequence[Codec | str], workers: int) -> Codec | str:
    near, far = found[0], found[-1]
    if isinstance(near, str) or isinstance(far, str):
        return near if isinstance(near, str) else str(far)
    if len(group) == 1:
        return near
    first, last = group[0].workers, group[-1].workers
    strategy: Strategy = registry.build("strategies", group[0].strategy)
    times = {strategy.coded(group[0].compressor, each)[0] for each in (first, last)}
    return near.towards(far, (workers - first) / (last - first), once=len(times) == 1)


def _title(asked: Question, profile: Profile) -> str:
    nodes = "" if asked.nodes is None else f" in {asked.nodes} nodes"
    sizes = f"{profile.numel:,} elements in {len(profile.buckets)} buckets"
    alone = f"{1e3 * profile.seconds:,.1f} ms without an exchange"
    return f"{asked.model or asked.script}: {sizes}, {alone}; {asked.workers} workers{nodes}, {asked.link}"


def _scaled(advice: Advice, profile: Profile) -> Sequence[str]:
    """Describe where the marked figures come from."""
    timed = {row.timed for row in advice.rows if row.timed}
    return [
        f"~: timed with {numel:,} of the {profile.numel:,} elements, and scaled by their number." for numel in timed
    ]


def _notes(asked: Question, candidates: Sequence[Candidate], optimizer: RunOptimizer | None) -> Sequence[str]:
    notes = []
    if optimizer is None or optimizer.adaptive is None:
        notes.append(UNKNOWN_OPTIMIZER.format("The optimizer" if optimizer is None else optimizer.name))
    elif optimizer.adaptive:
        notes.append(
            f"Points are those of training under SGD, and the optimizer is {optimizer.name} ({optimizer.source}): with "
            "fewer than 4 bits an element give variance_correction=optimizer (docs/adaptive.md)."
        )
    if asked.nodes is not None:
        notes.append(
            "Two levels are what strategy='hierarchical' does, and compress_fsdp(replicate=...): dense inside a node, "
            "compressed between nodes."
        )
    if asked.codec is None and any(len(each.worlds(asked.meeting)) > 1 for each in candidates):
        notes.append("Codecs were measured as of fewer workers and extrapolated on a line.")
    return notes


def _doubts(asked: Question, profile: Profile, cluster: Cluster) -> Iterator[str]:
    """Yield what was measured, or taken for granted, and need not be so where the training will run."""
    if asked.measure_link and cluster.wire.rate < 0.9 * wire_of(asked.meeting, asked.link).rate:
        yield (
            f"Measured were {8e-6 * cluster.wire.rate:,.0f} Mbit/s, because the workers share the processor of this "
            "machine: without --measure-link the rate that was given counts."
        )
    if not profile.busy and asked.codec is None:
        yield (
            "Codecs were timed on this machine's CPU, and the step is that of an accelerator, where they take a small "
            "part of that: give --codec (docs/advise.md)."
        )
    if asked.together > 1 and asked.nodes is None:
        yield (
            f"Each of the {asked.together} workers of a machine has a whole link here. Where they share one, give "
            "--nodes, or that part of it as --link."
        )
    if any(each.itemsize != 4 for each in profile.buckets):
        yield "Gradients are exchanged in 16 bits already, so bf16 and fp16 send as much as no compression."
