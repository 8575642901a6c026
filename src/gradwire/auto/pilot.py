"""The pilot of an exchange: it watches, predicts, decides with the other ranks, and changes its mind.

    watching    steps are uncompressed; a window of them says what is hidden behind the backward pass and what is not
    probing     if anything is not: one method a step is tried on each bucket, while steps stay uncompressed
    holding     buckets have their methods; each window says whether the link, the times or the errors have changed

Law: a decision is a function of numbers that are the same on all ranks, because they were brought together before
(``step_record.gathered``), so all ranks decide alike and switch between the same two buckets; what they compare in each
step (``group/agree.py``) counts the switches. What is predicted of a choice is corrected by what is seen of it:

    seconds     those of the code as probed, later as seen in use; those of its messages by link_cost.py
    link        bytes over seconds, from whatever travels now; a choice that misses the model has a factor (misses.py)
    rest        of the step: what it takes without an exchange. Where a code slows the backward pass down because both
                want the processor, the rest has grown since steps were uncompressed, and counts for every code

So a step that is slower than uncompressed ones were is not chosen again, and uncompressed steps, made anew, correct
what was known of them. Watching costs two clock readings for a bucket, under FSDP2 some more for the gathers of its
weights, and for each window one small message and two norms. None of it grows with the number of workers. Where nothing
is to be gained it rests: some of the steps are timed, and one small message tells whether that is still so; all others
are sums and nothing else.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire.auto.choices import (
    DENSE,
    Choice,
    Coded,
    ErrorBudget,
    budget_of,
    candidates,
    candidates_on_hosts,
    edges,
    exact_mean,
    finer,
    from_config,
    from_config_of,
    noise_added,
)
from gradwire.auto.decide import Option, Stage, best, exposed, finish
from gradwire.auto.exchanged_steps import EXPOSED_SHARE, advice
from gradwire.auto.host_links import HostWire, measured
from gradwire.auto.link_cost import LATENCY, MESSAGE, Round, Wire
from gradwire.auto.misses import Misses
from gradwire.auto.probe import Probed, compressible, probe
from gradwire.auto.step_record import BucketRun, Moment, StepRecord, StepWindow, between, gathered, moment, reduced
from gradwire.auto.traffic import (
    PredictedTraffic,
    dense_traffic,
    shared,
    traffic,
    traffic_of_host_scatter,
    traffic_of_hosts,
)
from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError, is_int, require
from gradwire.exchange.exchange import Exchange, Named
from gradwire.exchange.plan import carries
from gradwire.group.hosts import hosts_of

__all__ = ["AutoPilot"]

log = logging.getLogger("gradwire")

FIRST, WINDOW, LONGEST = 4, 12, 32
"""Steps of the first window, of one in which something may change, and at most: where nothing changes windows grow. A
change is seen at the end of the first window of which it fills more than half: after one and a half at most."""

LASTING = 2.0
"""Seconds that a window lasts at least where steps are long, which then has ``FIRST`` steps at least."""

REBUILT = 2
"""First steps that tell nothing: DDP sorts its buckets anew after the first."""

AFTER_SWITCH = 2
"""Steps after a switch that tell nothing: plans and buffers are made in them."""

MARGIN = 0.03
"""The share of a step that a first change must save, and that must be exposed before anything is tried."""

CHANGE = 0.08
"""The share of a step that another change must save while the link is as it was: what is predicted of methods that are
not in use is less exact than that."""

STEADY = 0.25
"""A link whose rate differs by less than this share has not changed; nor by fewer standard errors than ``SURE``."""

SURE = 3.0

SETTLED = 0.25
"""Gradients have settled when less than this share of their squared norm lies elsewhere than a window ago: in another
bucket, or in the batch's noise in place of the mean. A share has no unit, so the scale of the loss does not matter."""

PATIENCE = 96
"""Uncompressed steps after which codes are tried though gradients have not settled."""

PINGS = 3

BLIND = 3
"""Windows in a row in which nothing could be measured, after which that is said."""

NAMES = tuple[str, ...]


class AutoPilot:
    """The pilot of one exchange, which makes its decisions; ``compress_ddp(model, "auto")`` makes it.

    Args:
        exchange: exchange whose main compressor is ``none``, and whose pilot is this.
        shapes: names and shapes of all parameters, in the order of the network.
        budget: "exact", "safe" or "small".
        embeddings: names of the parameters of embeddings.
        decisions: decisions of an earlier run (``metrics()["auto"]["decisions"]``), made again in the same steps;
            nothing is measured then.

    Raises:
        ConfigError: a budget or a decision that there is not.
    """

    def __init__(
        self,
        exchange: Exchange,
        shapes: Sequence[Named],
        budget: str = "safe",
        embeddings: Iterable[str] = (),
        decisions: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.budget: ErrorBudget = budget_of(budget)
        self._exchange = weakref.ref(exchange)
        self.bears: Callable[[], bool] = lambda: False
        """A function that is true if the optimizers are known and bear what is kept back: none divides by a mean of
        squares."""
        self._edges = edges(shapes, embeddings)
        self._shapes = dict(shapes)
        self._choices = candidates(self.budget, exchange.channel.world)
        self._links: HostWire | None = None
        """The links of hosts that have several ranks each; None: there are none, or nobody has asked yet."""
        self._asked = False
        self.advises = True
        """False where the optimizer's steps cannot be exchanged, or that was named already."""
        self._blind = 0
        self.scatters = False
        """True where gradients are reduced to their owners, as FSDP's are."""
        self._buffers: Callable[[], int | None] = lambda: None
        self._check: Callable[[Compressor], None] = lambda _: None
        self._replayed = None if decisions is None else _checked(decisions, set(self._shapes))
        self._restart()
        exchange.pilot = self

    def _restart(self) -> None:
        self.phase = "watching" if self._replayed is None else "replaying"
        self.decisions: list[dict[str, Any]] = []
        self._begun: Moment = None
        self._record = StepRecord()
        self._window: list[StepRecord] = []
        self._length, self._skip, self._watched = FIRST, REBUILT, 0
        self._short = FIRST
        self._wire: Wire | None = None
        self._latency = LATENCY
        self._dense: StepWindow | None = None
        self._seen: StepWindow | None = None
        self._rate: float | None = None
        self._contention = 0.0
        self._held: float | None = None
        self._refused: float | None = None
        self._slow: float | None = None
        """The seconds of steps that were given up, because uncompressed ones were expected to be faster."""
        self._patience = 1
        self._current: dict[NAMES, Choice] = {}
        self._probed: dict[tuple[NAMES, Choice], Probed | None] = {}
        self._own: dict[tuple[NAMES, Choice], float] = {}
        self._misses = Misses()
        self._itemsizes: dict[NAMES, int] = {}
        self._todo: list[Choice] = []
        self._trying: Choice | None = None
        self._norms: dict[NAMES, tuple[float, float]] = {}
        """The squared norms of each bucket, of the ranks' own gradients and of the mean, as shares of all buckets'."""
        self._settled = False
        self._why: list[dict[str, Any]] = [] if self._replayed is None else self._repeated([])
        self._spoilt: list[bool] = []
        """Flags of the steps that were left to DDP since ranks last told each other: true where this one was spoilt."""
        self._fresh = False
        self._resting: tuple[StepWindow, Wire] | None = None
        """The uncompressed steps, and the link, with which nothing was to be gained; None: something may be."""
        self._due: StepWindow | None = None
        self._said = False
        """True once the log says why steps stay uncompressed, until the next switch."""
        self._drained_for = 0
        """The steps since the last switch in which residuals of a method that was left have waited to be sent."""

    @property
    def exchange(self) -> Exchange:
        """The exchange that this pilot decides for."""
        exchange = self._exchange()
        assert exchange is not None
        return exchange

    def begin(self) -> None:
        """Begin a step; the one before is complete."""
        record, self._record, self._begun = self._record, StepRecord(), None
        self._drained_for = self._drained_for + 1 if self.exchange.draining else 0
        if record.spoilt is not None:
            self._spoilt.append(record.spoilt)
        if self.phase == "replaying":
            return
        if self._skip > 0:
            self._skip -= bool(record.runs) or not record.timed
        elif record.runs:
            self._window.append(record)
        self._record.timed = self._resting is None or self._due is not None or self._skip == 0
        if self._record.timed:
            self._begun = moment(self.exchange.device)

    @property
    def idle(self) -> bool:
        """Return whether the current step is uncompressed, and needed only for its times, if at all."""
        full = len(self._window) >= self._length - 1 and not self._skip and self._resting is None
        free = self.phase == "watching" and not full and self._due is None
        return free and not self.exchange.assigned and not self._drains

    @property
    def _drains(self) -> bool:
        """Return whether the current step is exchanged because residuals of a method that was left wait to be sent.

        A parameter that nobody uses sends nothing, and may never be used again. So after some steps what waits for it
        is sent in one of those steps alone in which ranks tell each other something.
        """
        return self.exchange.draining and (self._drained_for <= LONGEST or self.glances)

    def leave_to_ddp(self) -> None:
        """Note that DDP itself sums the buckets of this step, so that only the pilot tells what was not finite."""
        self._record.spoilt = False

    def spoil(self) -> None:
        """Note that a gradient of this rank is not finite in this step, which is left to DDP."""
        self._record.spoilt = True

    def _numbers_to_share(self, latency: float) -> tuple[float, ...]:
        """The numbers of this rank of which the largest counts."""
        buffers = self._buffers()
        room = -math.inf if buffers is None else -float(buffers)
        return (-latency, 0.0 if self.bears() else 1.0, room, *map(float, self._spoilt))

    def _hear(self, anywhere: Sequence[float]) -> None:
        """Count the steps that were spoilt on other ranks alone; this rank's own are counted already.

        Args:
            anywhere: 1 for each step since ranks last told each other that was spoilt on some rank, else 0.
        """
        self.exchange.count_nonfinite(sum(there > own for there, own in zip(anywhere, self._spoilt, strict=True)))
        self._spoilt = []

    def leave(self) -> None:
        """Tell the other ranks what only this one knows of the steps so far, because the exchange goes on without a
        pilot. All ranks must call it, after the same step.
        """
        if self._record.spoilt is not None:
            self._spoilt.append(self._record.spoilt)
            self._record.spoilt = None
        if self._spoilt:
            told = [float(each) for each in self._spoilt]
            self._hear(reduced(told, self.exchange.channel, self.exchange.device, "max"))

    @property
    def timed(self) -> bool:
        """Return whether the buckets of the current step are to be noted."""
        return self._record.timed and self.phase != "replaying"

    @property
    def glances(self) -> bool:
        """Return whether the current step, which is idle, is the one for ``glance``."""
        return self._resting is not None and len(self._window) >= self._length

    def glance(self) -> None:
        """See whether there is still nothing to be gained; all ranks call it, on the thread that exchanges.

        Nothing changes in this step: what has changed is looked at in the next one.
        """
        assert self._resting is not None
        known, link = self._resting
        window, self._window = self._window, []
        seen = self._gathered(window, self._numbers_to_share(self._latency))
        self._record.disturbed = True
        self._skip = LONGEST - self._length
        if seen is None:
            return
        self._hear(seen.numbers[len(seen.numbers) - len(self._spoilt) :])
        wire = self._measured(seen, *self._loads(seen))
        self._watched += LONGEST
        if wire is None or not self._calm(seen, known, wire.rate / link.rate):
            self._due = seen
        else:
            self._seen = self._dense = seen
            self._wire = wire

    def _calm(self, seen: StepWindow, known: StepWindow, faster: float) -> bool:
        """Return whether uncompressed steps wait for the exchange no more than they did when nothing was to be gained,
        and not for a larger part of a step that has become shorter.

        Args:
            known: those steps.
            faster: the rate of the link over what it was then.
        """
        if [*seen.buckets] != [*known.buckets] or self._tries_again:
            return False
        alike = max(1 + STEADY, math.exp(SURE * seen.uncertain))
        same = 1 / alike < faster < alike and seen.exposed < alike * known.exposed
        same = same and known.period < alike * seen.period
        return same or seen.exposed < MARGIN * seen.period

    @property
    def _tries_again(self) -> bool:
        """Return whether methods that turned out slower than uncompressed steps are due for another try."""
        return self._refused is not None and self._watched >= self._patience * LONGEST

    def note(self, params: tuple[Named, ...], ready: Moment, itemsize: int = 4) -> BucketRun:
        """Watch a bucket that DDP reduces itself, in a step that is idle; the caller says when it was done.

        Args:
            itemsize: bytes of an element as DDP sends it.
        """
        if not self._record.runs:
            self._record.begun = ready
        run = BucketRun(params, ready, None, 0.0, itemsize)
        self._record.runs.append(run)
        return run

    def scatter(self, check: Callable[[Compressor], None], buffers: Callable[[], int | None] = lambda: None) -> None:
        """Declare that gradients are reduced to their owners; to be called once, before the first step.

        Args:
            check: refuses a method that a reduce-scatter cannot carry.
            buffers: returns how many reductions may be under way while gradients are computed; None: any number, on all
                ranks.

        Raises:
            ConfigError: ``check`` refuses a method in the decisions that are to be made again.
        """
        self.scatters, self._check, self._buffers, self.advises = True, check, buffers, False
        self._refuse(self._replayed or [])
        world = self.exchange.channel.world
        choices = [from_config_of(each, "allgather") for each in self.budget.methods if world > 1]
        self._choices = [DENSE, *(each for each in choices if carries(each.strategy, each.compressor))]

    def before(
        self,
        flat: Tensor,
        params: Sequence[Named],
        ready: Moment,
        own: Tensor | None = None,
        itemsize: int = 4,
        held: float | None = 0.0,
        *,
        blocking: bool = False,
        stalls: tuple[tuple[Moment, Moment], ...] = (),
    ) -> BucketRun | None:
        """Prepare the exchange of a bucket.

        Args:
            flat: gradients that are exchanged; where gradients are reduced to their owners, the part that the first of
                them gets.
            ready: time at which they were there; None: the beginning of the step, and what computes waits for this.
            own: part that this rank gets, where gradients are reduced to their owners; None: ``flat``.
            itemsize: bytes of an element where the bucket travels uncompressed.
            held: seconds for which what computes has stood still for exchanges so far, but for those that it waits for
                one by one; None: nobody knows.
            blocking: true where it waits for this exchange.
            stalls: other times for which it stood still since the bucket before, each with its beginning and its end.

        Returns:
            The record of the bucket, for ``started`` and ``after``; None where nothing is measured.
        """
        own = flat if own is None else own
        first = not self._record.runs
        if self.phase == "replaying":
            if first and not self._record.disturbed:
                self._record.disturbed = True
                self._replay()
            return None
        blocking, ready = blocking or ready is None, self._begun if ready is None else ready
        if itemsize != 4:
            self._itemsizes[_names(params)] = itemsize
        if first:
            self._record.begun = ready
            self._turn()
        if self._trying is not None:
            self._record.disturbed = True
            self._probed[tuple(name for name, _ in params), self._trying] = self._probe(self._trying, flat, params)
        run = BucketRun(
            tuple((name, tuple(shape)) for name, shape in params),
            ready,
            moment(self.exchange.device),
            self.exchange.counters.seconds["communicate"],
            held=held,
            blocking=blocking,
            stalls=stalls,
        )
        if len(self._window) == self._length - 1 and not self._skip and self._resting is None:
            run.own = torch.dot(own, own)
        self._record.runs.append(run)
        return run

    @property
    def probing(self) -> bool:
        """Return whether a choice is being tried in this step, on the thread that computes."""
        return self._trying is not None

    def started(self, run: BucketRun | None) -> None:
        """Note that another thread takes a bucket that was prepared before.

        Args:
            run: record that ``before`` made.
        """
        if run is not None:
            run.begun, run.communicating = moment(self.exchange.device), self.exchange.counters.seconds["communicate"]

    def _probe(self, choice: Choice, flat: Tensor, params: Sequence[Named]) -> Probed | None:
        """Try a choice on a bucket, or, where gradients are reduced to their owners, on the part of one of them."""
        world, size = self.exchange.channel.world, 1 if self._links is None else self._links.size
        if not self.scatters:
            return probe(self.exchange, choice, self._code(choice), flat, params, world, size)
        # A rank encodes as many parts as it sends messages, its own among them, and decodes as many for its own part.
        parts = world // size if choice.on_hosts else world
        alone = from_config_of(choice.method, "allgather")
        found = probe(self.exchange, alone, self._code(alone), flat, params, 1)
        return None if found is None else replace(found, seconds=parts * found.seconds)

    def after(self, flat: Tensor, run: BucketRun | None, multiplied: float = 1.0) -> None:
        """Note that the bucket was exchanged.

        Args:
            flat: the mean, where gradients are reduced to their owners this rank's own part of it.
            run: record that ``before`` made.
            multiplied: factor by which the mean was multiplied.
        """
        if run is None:
            return
        run.done = moment(self.exchange.device)
        run.communicated = self.exchange.counters.seconds["communicate"] - run.communicating
        if run.own is not None:
            run.mean = torch.dot(flat, flat) / multiplied**2

    def to_config(self) -> dict[str, Any]:
        """The configuration that must be the same on all ranks."""
        return {"budget": self.budget.name, "decisions": self._replayed}

    def metrics(self) -> dict[str, Any]:
        """Return the choices and the reasons for them, as plain numbers and words."""
        seen, wire = self._seen, self._wire
        link = None if wire is None else {"bits_per_second": 8 * wire.rate, "latency": wire.latency}
        if link is not None and isinstance(wire, HostWire):
            link |= {"ranks_per_host": wire.size, "shared": wire.shared, "inside_bits_per_second": 8 * wire.inside}
        return {
            "budget": self.budget.name,
            "phase": self.phase,
            "buckets": [dict(each) for each in self._why],
            "link": link,
            "step": None if seen is None else {"seconds": seen.period, "exposed": seen.exposed},
            "decisions": [dict(each) for each in self.decisions],
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the decisions; the measurements behind them are made anew when a run is resumed."""
        return {"budget": self.budget.name, "decisions": self.decisions}

    def check_state(self, state: Mapping[str, Any], frozen: Iterable[str] = ()) -> None:
        """Refuse a state whose decisions cannot be gone on with here.

        Args:
            frozen: names of parameters that are not trained now, and may have been when it was saved.

        Raises:
            ConfigError: the decisions are for other parameters, or have methods that cannot be carried.
        """
        self._refuse(_checked(state.get("decisions", []), {*self._shapes, *frozen}))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the methods of the last decision of a state that was checked, and watch how they do."""
        self._restart()
        self.decisions = [dict(each) for each in state.get("decisions", [])]
        known = self.decisions if self._replayed is None else self._replayed
        past = [each for each in known if each["step"] <= self.exchange.step]
        self.exchange.assign({})
        if past and self._replayed is not None:
            self._apply(past[-1])
        elif past and past[-1]["choices"]:
            choices = self._still_possible(past[-1]["choices"])
            if choices != past[-1]["choices"]:
                self.decisions.append({"step": self.exchange.step + 1, "choices": choices})
            self._apply({"choices": choices})
            self.phase = "holding" if choices else "watching"

    def _still_possible(self, choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The choices of a saved decision that are possible here: of parameters that are still trained, and without
        those of hosts, which may be others now, and have different numbers of ranks.
        """
        own, found = set(self._shapes), list[dict[str, Any]]()
        for each in choices:
            trained = [name for name in each["params"] if name in own]
            if trained and not from_config(each).on_hosts:
                found.append({**each, "params": trained})
        return found

    def _refuse(self, decisions: Sequence[Mapping[str, Any]]) -> None:
        """Refuse decisions whose methods this exchange cannot carry.

        Raises:
            ConfigError
        """
        for choice in (from_config(each) for decision in decisions for each in decision["choices"]):
            self._check(choice.compressor)
            lost = self.scatters and choice.on_hosts and choice.keeps
            words = "without methods over 'hierarchical' that keep values back, which a reduce-scatter does not carry"
            require(not lost, "decisions", words, choice.label)

    # What happens between windows.

    def _turn(self) -> None:
        """Do whatever is due before the first bucket of a step."""
        if self.phase == "probing":
            self._next_try()
            return
        if self.glances and self._due is None:
            self.glance()
        if self._due is not None:
            due, self._due, self._resting, self._skip = self._due, None, None, 0
            self._latency = -reduced([-self._ping()], self.exchange.channel, self.exchange.device, "max")[0]
            self._judge(due, kept=False)
            return
        if self._resting is not None or len(self._window) < self._length:
            return
        window, self._window = self._window, []
        exchange = self.exchange
        if self.phase == "holding" and self._dense is None:
            self._go_dense("this run has not seen any yet")
            return
        numbers = self._numbers_to_share(self._ping())
        seen = self._gathered(window, numbers)
        self._record.disturbed = True
        self._blind = 0 if seen is not None else self._blind + 1
        if self._blind == BLIND and exchange.channel.rank == 0:
            log.warning(
                "auto: nothing could be measured in %d windows of steps, because few steps in a row exchange the same "
                "buckets: the exchange stays as it is",
                BLIND,
            )
        if seen is None:
            return
        self._hear(seen.numbers[len(seen.numbers) - len(self._spoilt) :])
        for run in (run for record in window for run in record.runs):
            if run.itemsize is not None:
                self._itemsizes[run.names] = run.itemsize
        self._latency = -seen.numbers[0]
        self._watched += len(window) if self.phase == "watching" else 0
        self._judge(seen, kept=self._bears(seen))

    def _gathered(self, window: Sequence[StepRecord], numbers: Sequence[float]) -> StepWindow | None:
        """Bring the records of all ranks together; None where too few steps can be compared."""
        channel, device = self.exchange.channel, self.exchange.device
        seen = gathered(window, channel, device, numbers, parted=self.scatters, buffers=self._buffers())
        if seen is None or math.isinf(seen.numbers[2]):
            return seen
        return replace(seen, buffers=-int(seen.numbers[2]))

    def _judge(self, seen: StepWindow, kept: bool) -> None:
        """Learn from a window, and decide.

        Args:
            kept: true where the optimizers bear what is kept back.
        """
        self._record.disturbed = True
        self._seen = seen
        self._short = max(FIRST, min(WINDOW, math.ceil(LASTING / max(seen.period, 1e-6))))
        self._length = max(self._length, self._short)
        self._learn(seen)
        if self.phase == "watching":
            self._after_dense(seen)
        else:
            self._after_compressed(seen, kept)

    def _ping(self) -> float:
        """Measure the latency of a message: an all-reduce of one number, when all ranks are there."""
        exchange = self.exchange
        world = exchange.channel.world
        if world == 1:
            return LATENCY
        number, found = torch.zeros(1, dtype=torch.float32, device=exchange.device), []
        for _ in range(1 + PINGS):
            start = moment(exchange.device)
            exchange.channel.all_reduce(number)
            found.append(between(start, moment(exchange.device)))
        return min(found[1:]) / (2 * (world - 1))

    def _learn(self, seen: StepWindow) -> None:
        """Learn from a window about the link, the codecs in use, and the gradients."""
        sent, busy = self._loads(seen)
        self._correct(seen, sent, busy)
        self._wire = self._measured(seen, sent, busy) or self._wire
        for i, params in enumerate(seen.buckets):
            self._own[_names(params), self._choice(params)] = max(0.0, seen.total[i] - busy[i])
        self._learn_norms(seen)

    def _loads(self, seen: StepWindow) -> tuple[list[PredictedTraffic], list[float]]:
        """The messages of each bucket, and the seconds that they took."""
        sent = [self._traffic(params, self._choice(params)) for params in seen.buckets]
        return sent, [self._in_messages(seen, i) for i in range(len(seen.buckets))]

    def _measured(self, seen: StepWindow, sent: Sequence[PredictedTraffic], busy: Sequence[float]) -> Wire | None:
        """The link as a window shows it; None where nothing travelled."""
        model = self._wire or self._link(math.inf)
        moved = sum(model.load(each) for one in sent for each in _rounds(one))
        waited = sum(model.fixed(each) for one in sent for each in _rounds(one))
        time = sum(
            one / self._misses.of(self._choice(params).label) for one, params in zip(busy, seen.buckets, strict=True)
        )
        if not moved or time <= 0:
            return None
        return self._link(moved / max(time - waited, 0.2 * time))

    def _link(self, rate: float) -> Wire:
        """The model of the link at a rate in bytes a second."""
        message = min(MESSAGE, self._latency)
        if self._links is not None:
            return replace(self._links, rate=rate, latency=self._latency, message=message)
        return Wire(self.exchange.channel.world, rate, self._latency, message)

    def _find_hosts(self) -> None:
        """Ask once which ranks share a host; where several do, what hosts send together is another choice.

        Where gradients are reduced to their owners, only methods that keep nothing back: a rank encodes no part but
        those of owners that have its own number on their hosts.
        """
        exchange = self.exchange
        if self._asked or self._wire is None:
            return
        self._asked = True
        try:
            hosts = hosts_of(exchange.channel, exchange.device)
        except ConfigError:
            return  # Hosts of different sizes, the same on all ranks.
        if hosts.size > 1 and len(hosts.members) > 1:
            self._links = measured(exchange.channel, exchange.device, hosts, self._wire)
            self._wire = self._link(self._links.rate)
            carried = {each.method for each in self._choices if not (self.scatters and each.keeps)}
            found = [each for each in candidates_on_hosts(self.budget) if not self.scatters or each.method in carried]
            self._choices = [*self._choices, *found]

    def _learn_norms(self, seen: StepWindow) -> None:
        """Take from a window how much of the gradients is in which bucket, and how much of that is the batch's noise.

        Law: what is kept are shares of the squared norm of all buckets in the same step, so a loss scale that is halved
        seven times in a row, as a ``GradScaler`` does at the beginning, changes nothing. What arrives of a method that
        keeps values back is many steps' worth of a few elements, and says nothing about the mean of this step.
        """
        total = sum(seen.own)
        if not (math.isfinite(total + sum(seen.mean)) and total > 0):
            return
        known, moved = True, 0.0
        for params, own, mean in zip(seen.buckets, seen.own, seen.mean, strict=True):
            key, own, mean, choice = _names(params), own / total, mean / total, self._choice(params)
            if choice.keeps:
                continue
            if not choice.dense:
                coded = self._coded(params, choice, own, mean)
                mean = 0.0 if coded is None else exact_mean(mean, coded)
            known = known and key in self._norms
            before = self._norms.get(key, (own, mean))
            # Half of all differences is what has moved from one place to another.
            moved += (abs(mean - before[1]) + abs(own - mean - before[0] + before[1])) / 2
            self._norms[key] = ((before[0] + own) / 2, (before[1] + mean) / 2)
        self._settled = self._settled or (known and moved < SETTLED)

    def _in_messages(self, seen: StepWindow, place: int) -> float:
        """The seconds of a bucket's messages; on a GPU, where they cannot be measured, all that its
        code does not take.
        """
        if self.exchange.device.type != "cuda":
            return seen.communicated[place]
        params = seen.buckets[place]
        return max(0.0, seen.total[place] - self._coding(params, self._choice(params)))

    def _correct(self, seen: StepWindow, sent: Sequence[PredictedTraffic], busy: Sequence[float]) -> None:
        """Note by what factor the messages of each choice miss the model of the link, in its first window."""
        fresh, self._fresh = self._fresh, False
        if not fresh or self._wire is None:
            return
        found: dict[str, tuple[list[Round], float]] = {}
        for params, one, time in zip(seen.buckets, sent, busy, strict=True):
            choice = self._choice(params)
            if not choice.dense:
                rounds, taken = found.get(choice.label, ([], 0.0))
                found[choice.label] = [*rounds, *_rounds(one)], taken + time
        unsure = math.hypot(seen.uncertain, self._dense.uncertain if self._dense is not None else 0.0)
        self._misses.learn(found, self._wire, unsure, partial(self._is_better, seen))

    def _is_better(self, seen: StepWindow, missed: float) -> bool:
        """Return whether the present steps beat uncompressed ones, whichever of choice and link missed by a factor."""
        wire = self._wire
        if self._dense is None or wire is None or [*self._dense.buckets] != [*seen.buckets]:
            return False
        rates, uncompressed = (wire.rate, wire.rate / missed), []
        for rate in rates:
            self._wire = replace(wire, rate=rate)
            uncompressed.append(self._predicted([DENSE] * len(seen.buckets), seen))
        self._wire = wire
        return seen.period < (1 - MARGIN) * min(uncompressed)

    def _after_dense(self, seen: StepWindow) -> None:
        """Decide after a window of uncompressed steps: stay uncompressed, or try more promising choices."""
        self._dense = seen
        self._misses.settle(self._wire)
        if self._held is not None:
            self._contention, self._held = max(0.0, self._held - seen.rest), None
        if self._slow is not None and seen.period > (1 - MARGIN) * self._slow:
            # Not the methods were slow, but a rank, which is as slow without them.
            self._refused, self._patience = None, self._patience // 2
        self._slow = None
        self._why = self._reasons(seen, [DENSE] * len(seen.buckets))
        rate = self._wire.rate if self._wire else math.inf
        refused = self._refused is not None and abs(rate / self._refused - 1) < STEADY
        if refused and not self._tries_again:
            self._rest(seen, "steps with methods took longer, and are tried again later")
            return
        if seen.exposed < MARGIN * seen.period or self.exchange.channel.world == 1:
            self._rest(seen, "which is too little to gain anything")
            return
        if not self._settled and self._watched < PATIENCE:
            return
        if self.exchange.step <= self.exchange.policy.start_after:
            return  # Whatever was decided, these steps would be uncompressed.
        self._length, self._watched = self._short, 0
        self._find_hosts()
        if all((_names(params), each) in self._probed for params in seen.buckets for each in self._choices):
            if not self._decide(seen):
                self._rest(seen, f"and nothing within budget {self.budget.name!r} saves {100 * MARGIN:.0f} % of a step")
                self._advise(seen.exposed, seen.period, seen)
            return
        self.phase, self._todo, self._trying = "probing", self._choices[1:], None
        self._next_try()

    def _rest(self, seen: StepWindow, why: str) -> None:
        """Let steps be uncompressed, because nothing is to be gained by anything else: from now on some of them are
        timed, now and then, once it is known how much of the gradients is noise.

        Args:
            why: reason for which nothing is to be gained, for the log, which says it once after each switch.
        """
        if not self._settled or self._wire is None:
            self._length = min(LONGEST, 2 * self._length)
            return
        self._resting = seen, self._wire
        self._length = WINDOW
        self._skip = LONGEST - WINDOW
        if not self._said and self.exchange.channel.rank == 0:
            log.info(
                "auto: step %d, %s: steps stay uncompressed: %s of %s ms wait for the exchange, %s",
                self.exchange.step,
                _rate(self._wire.rate),
                _ms(seen.exposed),
                _ms(seen.period),
                why,
            )
        self._said = True

    def _next_try(self) -> None:
        """Try the next choice on the buckets of this step; after the last one, share the measurements of all ranks."""
        if self._todo:
            self._trying = self._todo.pop(0)
            return
        self._trying, seen = None, self._seen
        assert seen is not None
        keys = [(_names(params), each) for params in seen.buckets for each in self._choices[1:]]
        flat = []
        for key in keys:
            found = self._probed.get(key)
            error = math.inf if found is None or not math.isfinite(found.omega) else found.omega
            flat += [math.inf if found is None else found.seconds, error]
        # The seconds of the slowest rank count, and the largest error. Rebuilt buckets were not tried on any rank.
        largest = reduced(flat, self.exchange.channel, self.exchange.device, "max")
        for i, key in enumerate(keys):
            seconds, omega = largest[2 * i : 2 * i + 2]
            if math.isfinite(seconds) and not math.isfinite(omega):
                self._probed.pop(key, None)  # A gradient was not finite in that step: it is tried again.
            else:
                self._probed[key] = Probed(seconds, omega) if math.isfinite(seconds) else None
        for params in seen.buckets:
            self._probed[_names(params), DENSE] = None
        self.phase, self._window, self._skip = "watching", [], 0
        self._record.disturbed = True
        self._decide(seen)

    def _after_compressed(self, seen: StepWindow, kept: bool) -> None:
        """Decide after a window of steps with methods: keep them, change them, or go back."""
        dense, wire = self._dense, self._wire
        chosen = [self._choice(params) for params in seen.buckets]
        self._why = self._reasons(seen, chosen)
        if dense is None or wire is None or [*dense.buckets] != [*seen.buckets]:
            # Loaded, or buckets were rebuilt: uncompressed steps must be seen first.
            self._go_dense("uncompressed steps of these buckets are not known yet")
            return
        self._contention = max(0.0, seen.rest - dense.rest)
        if self._misses.doubted:
            self._held = seen.rest
            self._go_dense("messages take another time than the link's model says, or the link has changed")
            return
        if not kept and any(each.keeps for each in chosen):
            self._go_dense("an optimizer divides by the size of recent gradients and does not bear what waits")
            return
        uncompressed = self._predicted([DENSE] * len(chosen), seen)
        if seen.period > uncompressed * (1 + MARGIN / 2):
            self._refused, self._patience, self._held = wire.rate, 2 * self._patience, seen.rest
            self._slow = seen.period
            self._go_dense(f"{_ms(seen.period)} ms a step, uncompressed ones take {_ms(uncompressed)}")
            return
        if not self._decide(seen):
            self._length = min(LONGEST, 2 * self._length)

    def _go_dense(self, why: str) -> None:
        if self.exchange.channel.rank == 0:
            log.info("auto: step %d: uncompressed steps again, to see how they do: %s", self.exchange.step, why)
        self._switch({})
        self._watched = 0
        if self._seen is not None:
            self._why = self._reasons(self._seen, [DENSE] * len(self._seen.buckets))

    # Predictions.

    def _choice(self, params: Sequence[Named]) -> Choice:
        return self._current.get(_names(params), DENSE)

    def _code(self, choice: Choice) -> Callable[[str], Compressor]:
        few = finer(choice)
        return lambda name: few if name in self._edges else choice.compressor

    def _traffic(self, params: Sequence[Named], choice: Choice) -> PredictedTraffic:
        """Predict the messages of a bucket."""
        world, policy = self.exchange.channel.world, self.exchange.policy
        numel = sum(math.prod(shape) for _, shape in params)
        if self.scatters:
            return self._scattered(params, choice)
        if choice.dense:
            return PredictedTraffic(dense_traffic(numel, world, self._itemsizes.get(_names(params), 4)), ())
        divided = shared(params, choice.compressor, world, policy, choice.strategy.name, main=self._code(choice))
        if choice.on_hosts:
            assert self._links is not None
            return traffic_of_hosts(divided, world, self._links.size)
        return traffic(divided, world)

    def _scattered(self, params: Sequence[Named], choice: Choice) -> PredictedTraffic:
        """Predict the one round of a reduce-scatter; the shapes are those of the parts of one owner."""
        code, policy, sent = self._code(choice), self.exchange.policy, 0.0
        channel, numel = self.exchange.channel, sum(math.prod(shape) for _, shape in params)
        itemsize = self._itemsizes.get(_names(params), 4)
        if choice.dense and not channel.is_nccl:
            # FSDP reduces by itself then, and on Gloo its reduce-scatter is an all-reduce inside.
            return PredictedTraffic(dense_traffic(channel.world * numel, channel.world, itemsize), ())
        for name, shape in params:
            own = None if choice.dense else policy.choose(name, shape, code(name))
            plain = itemsize if choice.dense else 4
            sent += plain * math.prod(shape) if own is None else own.traffic(shape)
        if choice.on_hosts:
            assert self._links is not None
            return traffic_of_host_scatter(4 * numel, sent, channel.world, self._links.size)
        moved = (channel.world - 1) * sent
        return PredictedTraffic((), (Round("exchange", moved, moved),))

    def _coding(self, params: Sequence[Named], choice: Choice) -> float:
        """The seconds of a bucket outside its messages: as measured in use, or as probed."""
        key = (_names(params), choice)
        probed = self._probed.get(key)
        return self._own.get(key, probed.seconds if probed is not None else 0.0)

    def _seconds(self, params: Sequence[Named], choice: Choice) -> float:
        """Predict the seconds for which a bucket occupies the communication thread."""
        assert self._wire is not None
        sent = self._traffic(params, choice)
        factor = 1.0 if choice.dense else self._misses.expected(choice.label)
        return self._coding(params, choice) + factor * sum(self._wire.seconds(each) for each in _rounds(sent))

    def _added(self, params: Sequence[Named], choice: Choice, own: float, mean: float) -> float:
        """The variance that a choice adds to the mean gradient of a bucket; infinite if it is not known."""
        if choice.dense:
            return 0.0
        coded = self._coded(params, choice, own, mean)
        return math.inf if coded is None else noise_added(mean, coded)

    def _coded(self, params: Sequence[Named], choice: Choice, own: float, mean: float) -> Coded | None:
        """Return what the error that a choice adds to a bucket follows from; None if its code was not measured."""
        probed = self._probed.get((_names(params), choice))
        if probed is None:
            return None
        senders = world = self.exchange.channel.world
        if choice.on_hosts and self._links is not None:
            senders = world // self._links.size
            signal = max(0.0, world * mean - own) / (world - 1)
            own = signal + (own - signal) / self._links.size
        return Coded(probed.omega, own, senders, choice.twice(senders) and not self.scatters)

    def _noise(self, buckets: Sequence[Sequence[Named]]) -> float:
        """The variance that sampling the batch leaves in the mean gradient."""
        found = [self._norms.get(_names(params), (0.0, 0.0)) for params in buckets]
        return max(0.0, sum(own - mean for own, mean in found)) / max(1, self.exchange.channel.world - 1)

    def _bears(self, seen: StepWindow) -> bool:
        """Return whether the optimizers of all ranks bear what is kept back."""
        return len(seen.numbers) > 1 and seen.numbers[1] == 0.0

    def _stages(self, seen: StepWindow) -> list[Stage]:
        """The choices of each bucket, with times, and with errors relative to the batch's own variance."""
        noise = self._noise(seen.buckets)
        bears = self._bears(seen)
        stages = []
        for params, ready, blocking in zip(seen.buckets, seen.ready, seen.blocking, strict=True):
            own, mean = self._norms.get(_names(params), (math.inf, math.inf))
            options: list[Option | None] = []
            for choice in self._choices:
                known = choice.dense or (noise and self._probed.get((_names(params), choice)) is not None)
                if not known or (choice.keeps and not (self.budget.kept and bears)):
                    options.append(None)
                else:
                    # A value that is kept back is not lost and adds no variance; the test above has allowed it.
                    added = 0.0 if choice.dense else self._added(params, choice, own, mean) / noise
                    error = min(added, self.budget.variance / 8) if choice.keeps else added
                    options.append(Option(self._seconds(params, choice), error))
            stages.append(Stage(ready, options, blocking))
        return stages

    def _predicted(self, chosen: Sequence[Choice], seen: StepWindow, stages: Sequence[Stage] | None = None) -> float:
        """The predicted seconds of a step: those that no choice changes, and those until the last bucket is done."""
        dense = self._dense or seen
        places = [self._choices.index(each) for each in chosen]
        done = finish(stages or self._stages(seen), places, seen.buffers) if seen.buckets else 0.0
        busy = self._contention if any(not each.dense for each in chosen) else 0.0
        return dense.rest + busy + max(done, seen.ready[-1])

    def _decide(self, seen: StepWindow) -> bool:
        """Choose for every bucket, and switch if it is worth it; return whether anything changed."""
        if self._wire is None:
            return False
        stages = self._stages(seen)
        now = [self._choice(params) for params in seen.buckets]
        dense = [DENSE] * len(now)
        rest = (self._dense or seen).rest
        found = [self._choices[i] for i in best(stages, self.budget.variance, rest, seen.buffers)]
        uncompressed = self._predicted(dense, seen, stages)
        if self._predicted(found, seen, stages) > (1 - MARGIN) * uncompressed:
            found = dense
        errors = self._errors(stages, now)
        keeps = math.isfinite(errors) and errors <= 1.25 * self.budget.variance
        if found == now:
            return False
        alike = max(1 + STEADY, math.exp(SURE * seen.uncertain))
        steady = self._rate is not None and 1 / alike < self._wire.rate / self._rate < alike
        least = CHANGE if steady and now != dense else MARGIN
        if keeps and self._predicted(found, seen, stages) > (1 - least) * self._predicted(now, seen, stages):
            return False
        self._rate = self._wire.rate
        self._switch({_names(params): each for params, each in zip(seen.buckets, found, strict=True) if not each.dense})
        self._why = self._reasons(seen, found, stages)
        self._say(seen)
        return True

    def _errors(self, stages: Sequence[Stage], chosen: Sequence[Choice]) -> float:
        options = [stage.options[self._choices.index(each)] for stage, each in zip(stages, chosen, strict=True)]
        return sum(math.inf if option is None else option.error for option in options)

    def _switch(self, chosen: Mapping[NAMES, Choice]) -> None:
        """Switch to other choices, in this step."""
        groups: dict[str, list[str]] = {}
        for names, choice in chosen.items():
            groups.setdefault(choice.label, []).extend(names)
        by_label = {choice.label: choice for choice in chosen.values()}
        decision = {
            "step": self.exchange.step,
            "choices": [{**by_label[label].to_config(), "params": names} for label, names in groups.items()],
        }
        self.decisions.append(decision)
        self._apply(decision)
        self._current = dict(chosen)
        self.phase = "holding" if chosen else "watching"
        self._window, self._length, self._skip, self._fresh = [], self._short, AFTER_SWITCH, True
        self._resting = self._due = None
        self._said, self._drained_for = False, 0
        self._record.disturbed = True

    def _apply(self, decision: Mapping[str, Any]) -> None:
        assigned = {}
        for each in decision["choices"]:
            choice = from_config(each)
            code = self._code(choice)
            assigned.update({name: (code(name), choice.strategy) for name in each["params"]})
        self.exchange.assign(assigned)
        if self._replayed is not None:
            self._why = self._repeated(decision["choices"])

    def _replay(self) -> None:
        """Repeat the recorded decision of this step."""
        for decision in self._replayed or []:
            if decision["step"] == self.exchange.step:
                self.decisions.append(dict(decision))
                self._apply(decision)

    # What is told.

    def _label(self, choice: Choice) -> str:
        return choice.label.replace("allgather", "reduce_scatter") if self.scatters else choice.label

    def _repeated(self, choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return rows of what a repeated decision sends, as nothing is known of buckets; uncompressed ones are last."""
        shares = [(from_config(each), list(each["params"])) for each in choices]
        decided = {name for _, names in shares for name in names}
        shares.append((DENSE, [name for name in self._shapes if name not in decided]))
        rows = list[dict[str, Any]]()
        for choice, names in shares:
            params = [(name, self._shapes[name]) for name in names]
            row: dict[str, Any] = {"bucket": len(rows), "elements": sum(math.prod(shape) for _, shape in params)}
            row |= {"choice": self._label(choice), "budget": self.budget.variance}
            row |= dict.fromkeys(("seconds", "dense_seconds", "exposed", "dense_exposed", "error"))
            row["compressed"] = 0 if choice.dense else len(compressible(params, self.exchange.policy, choice))
            rows += [row] if names else []
        return rows

    def _reasons(
        self, seen: StepWindow, chosen: Sequence[Choice], stages: Sequence[Stage] | None = None
    ) -> list[dict[str, Any]]:
        """The choice for each bucket, and the numbers behind it; times in seconds."""
        if self._wire is None:
            return []
        stages = stages or self._stages(seen)
        noise, rows = self._noise(seen.buckets), list[dict[str, Any]]()
        options = [stage.options[self._choices.index(choice)] for stage, choice in zip(stages, chosen, strict=True)]
        coded = [
            self._seconds(params, choice) if option is None else option.seconds
            for params, choice, option in zip(seen.buckets, chosen, options, strict=True)
        ]
        plain = [self._seconds(params, DENSE) for params in seen.buckets]
        waits, plain_waits = exposed(stages, coded, seen.buffers), exposed(stages, plain, seen.buffers)
        for number, (params, choice, option) in enumerate(zip(seen.buckets, chosen, options, strict=True)):
            rows.append(
                {
                    "bucket": number,
                    "elements": sum(math.prod(shape) for _, shape in params),
                    "choice": self._label(choice),
                    "seconds": coded[number],
                    "dense_seconds": plain[number],
                    "exposed": waits[number],
                    "dense_exposed": plain_waits[number],
                    "error": option.error if option is not None and noise else None,
                    "budget": self.budget.variance,
                    "compressed": len(compressible(params, self.exchange.policy, choice)) if not choice.dense else 0,
                }
            )
        return rows

    def _say(self, seen: StepWindow) -> None:
        """Log one line for a switch, and at most one for each choice."""
        if self.exchange.channel.rank != 0:
            return
        total = sum(row["error"] or 0.0 for row in self._why)
        expected = self._predicted([self._choice(params) for params in seen.buckets], seen)
        log.info(
            "auto: step %d, %s: %s ms a step expected, %s uncompressed; error %.2g of %.2g",
            self.exchange.step,
            _rate(self._wire.rate if self._wire else math.inf),
            _ms(expected),
            _ms(self._predicted([DENSE] * len(seen.buckets), seen)),
            total,
            self.budget.variance,
        )
        for row in self._why:
            log.info(
                "auto: bucket %d, %d elements: %s: %s ms exposed instead of %s; error %.2g of %.2g",
                row["bucket"],
                row["elements"],
                row["choice"],
                _ms(row["exposed"]),
                _ms(row["dense_exposed"]),
                row["error"] or 0.0,
                row["budget"],
            )
        self._advise(sum(row["exposed"] for row in self._why), expected, seen)

    def _advise(self, exposed: float, step: float, seen: StepWindow) -> None:
        """Name once what takes fewer bytes than any method of gradients, where a step waits for most of its time.

        Args:
            exposed: seconds of a step that wait for the exchange.
            step: seconds of a step.
        """
        if exposed > EXPOSED_SHARE * step and not self._bears(seen) and self.advises:
            self.advises = False
            if self.exchange.channel.rank == 0:
                log.info("auto: %s", advice(exposed / step, self.budget.name))


def _names(params: Sequence[Named]) -> NAMES:
    return tuple(name for name, _ in params)


def _ms(seconds: float) -> str:
    """Milliseconds in words, without powers of ten.

    >>> _ms(5.3994), _ms(0.0152), _ms(2.5e-5), _ms(1e-9)
    ('5399', '15.2', '0.025', '0')
    """
    return f"{1e3 * seconds:.0f}" if seconds >= 0.1 else f"{round(1e3 * seconds, 4):.3g}"


def _rate(rate: float) -> str:
    """A rate of bytes a second in words.

    >>> _rate(2e7), _rate(1.2345e9)
    ('160 Mbit/s', '9.876 Gbit/s')
    """
    return f"{8e-9 * rate:.4g} Gbit/s" if rate >= 1.25e8 else f"{8e-6 * rate:.4g} Mbit/s"


def _rounds(sent: PredictedTraffic) -> tuple[Round, ...]:
    return (*sent.dense, *sent.rounds)


def _checked(decisions: object, names: set[str]) -> list[dict[str, Any]]:
    """Check decisions, and return them in the form in which the pilot makes them.

    Raises:
        ConfigError: the decisions are not of that form, or name parameters that do not exist.
    """
    form = "decisions as metrics()['auto']['decisions'] gives them"
    require(isinstance(decisions, Sequence) and not isinstance(decisions, str), "decisions", form, decisions)
    assert isinstance(decisions, Sequence)
    for each in decisions:
        right = isinstance(each, Mapping) and is_int(each.get("step"), 1) and isinstance(each.get("choices"), list)
        require(right, "decisions", form, each)
        for choice in each["choices"]:
            made = from_config(choice)
            made.strategy.check(made.compressor)
            require(isinstance(choice.get("params"), list), "decisions", form, choice)
            unknown = [name for name in choice["params"] if name not in names]
            if unknown:
                raise ConfigError(f"decisions must be of this model's parameters, got {unknown[0]!r}")
    return [dict(each) for each in decisions]
