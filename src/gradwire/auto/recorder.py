"""Measuring: the steps of this rank, and the windows that all ranks make of them.

Invariants:
    * Nothing is sent for a single step. One message carries a window, together with the flags of values that were
      not finite.
    * The first steps, and those after a switch, do not count, because plans and buffers are made in them.
    * While nothing is to be gained only some steps are timed: of ``LONGEST`` steps as many as a window has.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradwire.auto.link_cost import LATENCY
from gradwire.auto.shared_link import Gathers, WeightControl
from gradwire.auto.step_record import BucketRun, Moment, StepRecord, StepWindow, between, gathered, moment, reduced
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import Named

__all__ = ["LONGEST", "WINDOW", "StepRecorder"]

FIRST, WINDOW, LONGEST = 4, 12, 32
"""Steps of the first window, of one in which something may change, and at most: where nothing changes windows grow. A
change is seen at the end of the first window of which it fills more than half: after one and a half at most."""

LASTING = 2.0
"""Seconds that a window lasts at least where steps are long, which then has ``FIRST`` steps at least."""

REBUILT, SHARDED = 2, 1
"""First steps that tell nothing: DDP sorts its buckets anew after the first; of sharded models it is the first."""

AFTER_SWITCH = 2
"""Steps after a switch that tell nothing: plans and buffers are made in them."""

PINGS = 3
"""Messages that show the latency, after one that does not count."""

PINGED_EVERY = 8
"""Windows from one measurement of the latency to the next."""


class StepRecorder:
    """The records of an exchange's steps since the last window.

    Args:
        exchange: exchange whose steps are recorded.

    Attributes:
        record: record of the current step.
        steps: records of the steps that will be in the next window.
        length: steps that it will have.
        itemsizes: bytes of an element of buckets that travel uncompressed in another dtype than float32.
        scatters: true where gradients are reduced to their owners, as FSDP's are.
        weights: part that gathers weights; None: nobody watches it.
        begun: time at which the current step began, if it is timed.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange: Exchange = weakref.proxy(exchange)
        self.scatters = False
        self.weights: WeightControl | None = None
        self._buffers: Callable[[], int | None] = lambda: None
        self.restart()

    def restart(self) -> None:
        """Forget all steps, as at the beginning."""
        self.record = StepRecord()
        self.begun: Moment = None
        self.steps: list[StepRecord] = []
        self.length, self._short, self._skip = FIRST, FIRST, SHARDED if self.scatters else REBUILT
        self.itemsizes: dict[tuple[str, ...], int] = {}
        self._spoilt: list[bool] = []
        """The steps that were left to DDP since ranks last told each other, and whether a gradient of this rank was not
        finite in them. A rank counts its own at once."""
        self._windows = 0

    def scatter(self, buffers: Callable[[], int | None], weights: WeightControl | None) -> None:
        """Record reductions of gradients to their owners; arguments as for ``AutoController.scatter``."""
        self.scatters, self._buffers, self.weights = True, buffers, weights
        self._skip = SHARDED

    # A step.

    def begin(self, *, every: bool, counts: bool = True) -> None:
        """Begin a step; the one before is complete.

        Args:
            every: true: all steps are timed; false: only those of the next window.
            counts: false: nothing is measured at all.
        """
        record, self.record, self.begun = self.record, StepRecord(), None
        if self.weights is not None:
            record.link = self.weights.link_use()
        # In every step, also in one that is not timed: the ranks tell each other of all of them.
        self._end_spoilt(record)
        if not counts:
            return
        if self._skip > 0:
            self._skip -= bool(record.runs) or not record.timed
        elif record.runs:
            self.steps.append(record)
        self.record.timed = every or self._skip == 0
        if self.record.timed:
            self.begun = moment(self._exchange.device)

    def leave_to_ddp(self, *, spoilt: bool) -> None:
        """Record that DDP itself reduces the buckets of this step, and whether a gradient of this rank is not finite:
        only the ranks' own numbers tell that then.
        """
        self.record.spoilt = spoilt

    def leave(self) -> None:
        """Tell the other ranks what only this one knows of the steps so far, because the exchange goes on without a
        controller. All ranks must call it, after the same step.
        """
        self._end_spoilt(self.record)
        if self._spoilt:
            flags = [float(each) for each in self._spoilt]
            self._count_spoilt(reduced(flags, self._exchange.channel, self._exchange.device, "max"))

    def _end_spoilt(self, record: StepRecord) -> None:
        """Take in a step that is complete."""
        if record.spoilt is not None:
            self._spoilt.append(record.spoilt)
            record.spoilt = None

    def _count_spoilt(self, anywhere: Sequence[float]) -> None:
        """Count the steps spoilt on other ranks alone; the last numbers are the largest of all ranks' flags."""
        own, self._spoilt = self._spoilt, []
        there = anywhere[len(anywhere) - len(own) :]
        self._exchange.rollback.count(sum(other > mine for other, mine in zip(there, own, strict=True)))

    def note(self, params: tuple[Named, ...], ready: Moment, itemsize: int) -> BucketRun:
        """Record a bucket that DDP reduces itself, in a step that is idle; the caller says when it was done.

        Args:
            itemsize: bytes of an element as DDP sends it.
        """
        if not self.record.runs:
            self.record.begun = ready
        run = BucketRun(params, ready, None, 0.0, itemsize)
        self.record.runs.append(run)
        return run

    def note_itemsize(self, params: Sequence[Named], itemsize: int) -> None:
        """Note the bytes of an element of a bucket where it travels uncompressed."""
        if itemsize != 4:
            self.itemsizes[tuple(name for name, _ in params)] = itemsize

    def prepared(
        self,
        params: Sequence[Named],
        ready: Moment,
        held: float | None,
        gathers: Gathers,
        *,
        blocking: bool,
        norm_of: Tensor | None,
    ) -> BucketRun:
        """Record a bucket whose exchange begins.

        Args:
            norm_of: this rank's gradients, of which the norm is wanted; None: it is not.
        """
        run = BucketRun(
            tuple((name, tuple(shape)) for name, shape in params),
            ready,
            moment(self._exchange.device),
            self._exchange.counters.seconds["communicate"],
            held=held,
            blocking=blocking,
            gathers=gathers,
        )
        if norm_of is not None:
            run.own = torch.dot(norm_of, norm_of)
        self.record.runs.append(run)
        return run

    def started(self, run: BucketRun) -> None:
        """Record that another thread takes a bucket that was prepared before."""
        run.begun = moment(self._exchange.device)
        run.communicating = self._exchange.counters.seconds["communicate"]

    def after(self, flat: Tensor, run: BucketRun, multiplied: float) -> None:
        """Record that a bucket was exchanged; see ``AutoController.after``."""
        run.done = moment(self._exchange.device)
        run.communicated = self._exchange.counters.seconds["communicate"] - run.communicating
        if run.own is not None:
            run.mean = torch.dot(flat, flat) / multiplied**2

    # A window.

    @property
    def full(self) -> bool:
        """Return whether there are as many steps as the window has."""
        return len(self.steps) >= self.length

    @property
    def nearly_full(self) -> bool:
        """Return whether the current step is the last one of the window."""
        return len(self.steps) >= self.length - 1 and not self._skip

    @property
    def last(self) -> bool:
        """Return whether the current step completes the window, and so is the one of which norms are wanted."""
        return len(self.steps) == self.length - 1 and not self._skip

    def restart_window(self, *, switched: bool) -> None:
        """Begin a window anew, as what is exchanged has changed.

        Args:
            switched: true: with other methods, so the first steps tell nothing.
        """
        self.steps = []
        self._skip = AFTER_SWITCH if switched else 0
        if switched:
            self.length = self._short
        self.record.disturbed = True

    def lengthen(self) -> None:
        """Make the next windows longer, because nothing changes."""
        self.length = min(LONGEST, 2 * self.length)

    def shorten(self) -> None:
        """Make the next windows as short as steps allow, because something may change."""
        self.length = self._short

    def rest(self) -> None:
        """Time some steps of many from now on."""
        self.length = WINDOW
        self._skip = LONGEST - WINDOW

    def stop_resting(self) -> None:
        """Time the current step, and all from now on."""
        self._skip = 0

    def follow(self, seen: StepWindow) -> None:
        """Make windows as long as the steps of this one require."""
        self._short = max(FIRST, min(WINDOW, math.ceil(LASTING / max(seen.period, 1e-6))))
        self.length = max(self.length, self._short)

    def latency(self, known: float) -> float:
        """The seconds of a message, as known or, for one window of eight, measured; all ranks must call it alike."""
        return known if self._windows % PINGED_EVERY else self.ping()

    def ping(self) -> float:
        """Measure the latency of a message: an all-reduce of one number, when all ranks are there."""
        exchange = self._exchange
        world = exchange.channel.world
        if world == 1:
            return LATENCY
        number, found = torch.zeros(1, dtype=torch.float32, device=exchange.device), []
        for _ in range(1 + PINGS):
            start = moment(exchange.device)
            # The first one does not count: in it ranks wait for each other.
            exchange.channel.all_reduce(number)
            found.append(between(start, moment(exchange.device)))
        return min(found[1:]) / (2 * (world - 1))

    def agreed_ping(self) -> float:
        """Measure the latency as ``ping`` does; the least of all ranks' counts."""
        return -reduced([-self.ping()], self._exchange.channel, self._exchange.device, "max")[0]

    def measure(self, *, bears: bool, latency: float) -> StepWindow | None:
        """Make a window of the steps so far, and forget them. All ranks must call it alike.

        Args:
            bears: true where the optimizers of this rank bear what is kept back.
            latency: seconds of a message, as this rank knows them.

        Returns:
            None where too few steps can be compared; so it is on all ranks.
        """
        # Dropped whether or not they can be compared, so that all ranks begin the next window in the same step.
        steps, self.steps = self.steps, []
        exchange, buffers = self._exchange, self._buffers()
        room = -math.inf if buffers is None else -float(buffers)
        # Of each number the largest of all ranks counts, so the sign of those of which the least counts is changed.
        numbers = (-latency, 0.0 if bears else 1.0, room, *map(float, self._spoilt))
        seen = gathered(
            steps,
            exchange.channel,
            exchange.device,
            numbers,
            parted=self.scatters,
            buffers=buffers,
            watched=self.weights is not None,
        )
        self.record.disturbed = True
        if seen is None:
            return None
        # What was measured beside a window that shows nothing is lost.
        self._windows += 1
        self._count_spoilt(seen.numbers)
        for run in (run for step in steps for run in step.runs):
            if run.itemsize is not None:
                self.itemsizes[run.names] = run.itemsize
        least, borne, fewest = seen.numbers[:3]
        seen = replace(seen, latency=-least, bears=borne == 0.0)
        return seen if math.isinf(fewest) else replace(seen, buffers=-int(fewest))
