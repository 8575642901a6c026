"""Observations of a window of steps: when buckets were ready, how long each took, and the statistics of gradients.

Invariants:
    * Of the time of each bucket in each step the least over the ranks counts. Of what the slowest rank decides, such as
      when gradients are there, the most counts.
    * One all-reduce (max) carries all of a window: some numbers for each bucket and step, for any number of workers.
      Squared norms, where they were measured, are added up in another one, because each rank knows only its own part
      where gradients are reduced to their owners.
    * Of the steps of a window the median counts, so one step that was disturbed changes nothing.

Why:
    A rank that comes early to an exchange waits in it for the others, and only the last one sees what the exchange
    costs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gradwire.auto.link_cost import LATENCY
from gradwire.auto.shared_link import NO_GATHERS, UNUSED, GatheredWeights, Gathers, LinkUse, sharing
from gradwire.auto.timeline import Timeline
from gradwire.engine.plan import Named
from gradwire.transport.channel import Channel

__all__ = ["BucketRun", "Moment", "StepRecord", "StepWindow", "between", "gathered", "moment", "reduced"]

HELD_UP = 5e-5
"""Seconds within which a stream that waited for a reduction has its next gradients there."""

Moment = Any
"""A point in time: seconds of this process's clock, or an event on a device."""


def moment(device: torch.device) -> Moment:
    """A time mark: the present on a CPU; on a GPU the moment when all work queued on the stream so far is done."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def between(start: Moment, end: Moment) -> float:
    """Seconds from one mark to a later one; it waits until the device has reached both."""
    if isinstance(start, float):
        return float(end - start)
    for event in (start, end):
        # The window is read after its steps, so the device has long reached both marks, as a rule.
        event.synchronize()
    return float(start.elapsed_time(end)) / 1e3


@dataclass
class BucketRun:
    """The record of one bucket in one step.

    Args:
        params: names and shapes.
        ready: time at which its gradients were there.
        begun: time at which the thread took it; None: it was reduced by DDP itself, at the same time as the buckets
            before it.
        communicating: seconds in messages up to then.
        itemsize: bytes of an element as DDP sent it; None: it was not reduced by DDP itself.
        held: seconds for which the thread that computes had stood still for exchanges until then, since any time before
            the step, but for those that it waits for one by one; None: nobody knows.
        blocking: true where that thread waits for this exchange, so that nothing hides it.
        gathers: weights that were gathered since the bucket before, for which that thread paused.
    """

    params: tuple[Named, ...]
    ready: Moment
    begun: Moment
    communicating: float
    itemsize: int | None = None
    held: float | None = 0.0
    blocking: bool = False
    gathers: Gathers = NO_GATHERS
    done: Moment = None
    communicated: float = 0.0
    own: Tensor | None = None
    mean: Tensor | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its parameters."""
        return tuple(name for name, _ in self.params)

    @property
    def numel(self) -> int:
        """The number of elements."""
        return sum(math.prod(shape) for _, shape in self.params)


@dataclass
class StepRecord:
    """The record of one step.

    Args:
        begun: time at which its first bucket was ready.
        runs: records of the buckets, in their order.
        disturbed: something else was done in it, so its times do not count.
        timed: true where its buckets are timed.
        spoilt: true where DDP itself summed, and a gradient of this rank was not finite; None: DDP did not.
        link: seconds in which the link was in use until the next step's first bucket.
    """

    begun: Moment = None
    runs: list[BucketRun] = field(default_factory=list)
    disturbed: bool = False
    timed: bool = True
    spoilt: bool | None = None
    link: LinkUse = UNUSED

    @property
    def buckets(self) -> list[tuple[Named, ...]]:
        """The buckets, each of which was exchanged together."""
        return [run.params for run in self.runs]


@dataclass(frozen=True)
class StepWindow:
    """A window as all ranks see it, with the same numbers on each of them.

    Args:
        buckets: names and shapes.
        steps: number of steps that counted.
        period: seconds from one step to the next, of the slowest rank.
        ready: seconds from the first bucket's to each bucket's gradients, of the slowest rank, if no exchange holds up
            what computes them.
        total: seconds that the thread was busy with each bucket, of the rank that came last.
        communicated: number of those steps that were communicated in messages.
        own: the mean over the ranks of the squared norms of their gradients, by bucket; not finite: not known.
        mean: the squared norm of the mean gradient; not finite: not known.
        numbers: the other numbers of the ranks: of each number the largest.
        uncertain: the share by which the seconds in messages may be wrong, as they differ from step to step: about the
            standard error of their median.
        blocking: true for buckets that the thread that computes waits for, on any rank in any of those steps.
        buffers: exchanges that may be under way while it goes on; None: any number.
        latency: seconds of a message, of the rank that measured the least.
        bears: true where the optimizers of all ranks bear what is kept back.
        unsteady: the share by which the seconds of a step may be wrong, likewise.
        gathers: weights that are gathered before each bucket, of the first bucket those of the forward pass, too; empty
            where nobody watches them.
        link: seconds of a step in which the link was in use, where gathers are watched.
    """

    buckets: tuple[tuple[Named, ...], ...]
    steps: int
    period: float
    ready: tuple[float, ...]
    total: tuple[float, ...]
    communicated: tuple[float, ...]
    own: tuple[float, ...]
    mean: tuple[float, ...]
    numbers: tuple[float, ...] = ()
    uncertain: float = 0.0
    blocking: tuple[bool, ...] = ()
    buffers: int | None = None
    latency: float = LATENCY
    bears: bool = False
    unsteady: float = 0.0
    gathers: tuple[GatheredWeights, ...] = ()
    link: LinkUse = UNUSED

    @property
    def sharing(self) -> float:
        """The factor between a reduction's seconds in messages and those that it would take if no gather travelled."""
        return sharing(self.link, sum(self.communicated)) if self.gathers else 1.0

    @property
    def gather_seconds(self) -> tuple[float, ...]:
        """The seconds for which what computes stands still for the gathers before each bucket, as in one queue."""
        first, *others = (each.seconds for each in self.gathers or [GatheredWeights(0, 0, 0, 0, 0, 0)])
        return (first, *(self.sharing * each for each in others)) if self.gathers else (0.0,) * len(self.buckets)

    @property
    def finished(self) -> float:
        """Seconds from the first bucket's gradients, or from its gathers where they are watched, until the thread is
        done with the last bucket.
        """
        line, asked, shared = Timeline(buffers=self.buffers), 0.0, 1 - self.sharing
        rows = zip(self.ready, self.total, self.communicated, self.blocking, self.gather_seconds, strict=True)
        for ready, total, communicated, blocking, gathers in rows:
            line = line.gathered(asked, gathers).after(ready, total - shared * communicated, blocking=blocking)
            asked = ready
        return line.now

    @property
    def exposed(self) -> float:
        """Seconds that the step waits for exchanges: after the last bucket's gradients are there, and before, where
        they hold up what computes.
        """
        return max(0.0, self.finished - self.ready[-1])

    @property
    def rest(self) -> float:
        """The seconds that no exchange changes: before the first bucket's gradients, and after the last's."""
        return max(0.0, self.period - max(self.finished, self.ready[-1]))


def taken(run: BucketRun, before: BucketRun | None) -> float:
    """Seconds that a bucket took beyond those before it."""
    begun = run.ready if run.begun is None else run.begun
    if run.begun is None and before is not None and between(begun, before.done) > 0:
        begun = before.done
    return max(0.0, between(begun, run.done))


def arrivals(step: StepRecord, buffers: int | None = None) -> list[float]:
    """The seconds from the beginning of a step until the gradients of each bucket are there, if no exchange holds up
    the thread, or the stream, that computes them.

    It goes on from a bucket that is waited for when that is done. Where nobody knows for how long a stream stood still,
    as under FSDP on a GPU, the gradients that are there right after the end of the reduction for whose buffer it may
    have waited are taken for computed in no time: that seems exposed then which is not, until steps with a method,
    which hold the stream up less, show it. ``buffers`` are the reductions that may be under way, as in ``Timeline``.
    """
    found = [between(step.begun, step.runs[0].ready)]
    for i, (before, run) in enumerate(pairwise(step.runs), 1):
        freed = step.runs[i - buffers].done if buffers is not None and i >= buffers else None
        if before.blocking:
            computed = between(before.done, run.ready)
        elif run.held is not None and before.held is not None:
            computed = between(before.ready, run.ready) - (run.held - before.held)
        elif freed is not None and 0 <= between(freed, run.ready) < HELD_UP:
            computed = 0.0
        else:
            computed = between(before.ready, run.ready)
        stood = sum(between(*pause) for pause in run.gathers.stalls)
        found.append(found[-1] + max(0.0, computed - stood))
    return found


def gathered(
    steps: Sequence[StepRecord],
    channel: Channel,
    device: torch.device,
    numbers: Sequence[float] = (),
    *,
    parted: bool = False,
    buffers: int | None = None,
    watched: bool = False,
) -> StepWindow | None:
    """Gather the records of all ranks. All ranks must call it alike.

    Args:
        steps: one after the other, all but the last of which count: a step lasts until the next one begins.
        channel: channel over which the records are brought together.
        device: device that the channel serves.
        numbers: numbers of this rank, of each of which the most is wanted; as many on all ranks.
        parted: each rank has noted the norms of its own part, of as many parts as there are ranks.
        buffers: exchanges of this rank that may be under way while gradients are computed; None: any number.
        watched: true where gathers of weights are watched, on all ranks.

    Returns:
        None where fewer than two steps exchanged the last one's buckets undisturbed; so it is on all ranks.
    """
    wanted = steps[-1].buckets if steps else []
    pairs = [
        (each, following)
        for each, following in pairwise(steps)
        if each.buckets == wanted and not each.disturbed and not following.disturbed
    ]
    if len(pairs) < 2 or not wanted:
        return None
    rows: list[list[float]] = []
    for each, following in pairs:
        row = [between(each.begun, following.begun)]
        row += arrivals(each, buffers)
        # The least of these counts, so its sign is changed. A thread takes a bucket when it is there.
        busy = [taken(run, before) for run, before in zip(each.runs, [None, *each.runs], strict=False)]
        row += [-seconds for seconds in busy]
        row += [
            -(seconds if run.begun is None else run.communicated) for run, seconds in zip(each.runs, busy, strict=True)
        ]
        row += [float(run.blocking) for run in each.runs]
        if watched:
            # What is gathered before the first bucket of the next step belongs to the time until then.
            paused = [sum(between(*pause) for pause in run.gathers.stalls) for run in gathering(each, following)]
            row += [-seconds for seconds in (*paused, each.link.busy, each.link.gathers, each.link.forward)]
        rows.append(row)
    count = len(wanted)
    flat = [number for row in rows for number in row]
    # One message for all numbers of a window: a rank's own times must decide nothing.
    everything = reduced([*flat, *numbers], channel, device, "max")
    found = everything[: len(flat)]
    runs = steps[-1].runs
    norms = [math.nan] * (2 * count)
    if any(run.own is not None for run in runs):
        told_norms = [_number(norm) for norm in (*(r.own for r in runs), *(r.mean for r in runs))]
        norms = [norm if parted else norm / channel.world for norm in reduced(told_norms, channel, device, "sum")]
    width = 1 + 4 * count + (count + 3 if watched else 0)
    table = [found[i * width : (i + 1) * width] for i in range(len(rows))]
    columns = [median(column) for column in zip(*table, strict=True)]
    seconds = [max(0.0, -each) for each in columns[1 + 4 * count :]]
    gathers = [gathers_of([gathering(*pair)[i].gathers for pair in pairs], seconds[i]) for i in range(len(seconds) - 3)]
    return StepWindow(
        tuple(wanted),
        len(rows),
        columns[0],
        tuple(max(0.0, each) for each in columns[1 : 1 + count]),
        tuple(max(0.0, -each) for each in columns[1 + count : 1 + 2 * count]),
        tuple(max(0.0, -each) for each in columns[1 + 2 * count : 1 + 3 * count]),
        tuple(norms[:count]),
        tuple(norms[count:]),
        tuple(everything[len(flat) :]),
        uncertainty([-sum(row[1 + 2 * count : 1 + 3 * count]) for row in table]),
        tuple(max(row[1 + 3 * count + i] for row in table) > 0 for i in range(count)),
        buffers,
        unsteady=uncertainty([row[0] for row in table]),
        gathers=tuple(gathers),
        link=LinkUse(*seconds[count:]) if watched else UNUSED,
    )


def gathering(step: StepRecord, following: StepRecord) -> list[BucketRun]:
    """The buckets before which weights are gathered from the first bucket of a step to the first of the next."""
    return [*following.runs[:1], *step.runs[1:]]


def gathers_of(found: Sequence[Gathers], seconds: float) -> GatheredWeights:
    """The gathers before a bucket, as they are in most steps."""
    columns = [(each.calls, each.numel, each.sent, each.plain, each.coded) for each in found]
    return GatheredWeights(seconds, *(float(median(column)) for column in zip(*columns, strict=True)))


def uncertainty(seconds: Sequence[float]) -> float:
    """The standard error of a median as a share of it, from the median of the deviations, as of normal numbers.

    One number that is far from all others says nothing about the others.

    >>> uncertainty([1.0, 1.0, 1.0, 10.0]), round(uncertainty([0.8, 0.9, 1.0, 1.1, 1.2]), 3)
    (0.0, 0.083)
    """
    middle = median(seconds)
    spread = median(abs(each - middle) for each in seconds)
    return 1.2533 * 1.4826 * spread / middle / math.sqrt(len(seconds)) if middle > 0 else 0.0


def reduced(numbers: Sequence[float], channel: Channel, device: torch.device, how: str) -> list[float]:
    """The sum of each number over the ranks, or its maximum. All ranks must call it with as many numbers."""
    sent = torch.tensor(list(numbers), dtype=torch.float64, device="cpu").to(device)
    channel.all_reduce(sent, how)
    found: list[float] = sent.tolist()
    return found


def _number(square: Tensor | None) -> float:
    return math.nan if square is None else float(square)
