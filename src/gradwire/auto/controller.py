"""The controller of an exchange: it watches, predicts, decides with the other ranks, and changes its mind.

What follows from what is in the table of ``states.py``; the actions of the table are methods here. The package's
docstring lists the parts that measure, predict, search, keep and report.

Invariants:
    * A decision is a function of numbers that are the same on all ranks, because they were brought together before
      (``step_record.gathered``), so all ranks decide alike and switch between the same two buckets; what they compare
      in each step (``transport/handshake.py``) counts the switches.
    * Watching costs two clock readings for a bucket, under FSDP2 some more for the gathers of its weights, and for each
      window two small messages, and in some windows four more for the latency. None of them grows with the number of
      workers.
    * Where nothing is to be gained it rests: some of the steps are timed, and one small message tells whether that is
      still so; all others are sums and nothing else.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from gradwire.auto.choices import Choice, ErrorBudget, budget_of, from_config
from gradwire.auto.decisions import Decisions
from gradwire.auto.hysteresis import MARGIN, Setback, margin, unchanged
from gradwire.auto.link_cost import Wire
from gradwire.auto.recorder import LASTING, LONGEST, StepRecorder
from gradwire.auto.reporter import Reporter, time_text
from gradwire.auto.search import Proposal, Search
from gradwire.auto.shared_link import NO_GATHERS, Gathers, WeightControl
from gradwire.auto.states import TABLE, AutoState, Event
from gradwire.auto.step_model import StepModel
from gradwire.auto.step_record import BucketRun, Moment, StepWindow
from gradwire.compressors.base import Compressor
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import Named

__all__ = ["AutoController"]

PATIENCE = 96
"""Uncompressed steps after which candidates are tried though gradients have not settled."""

PATIENT_FOR, PATIENT_SHARE = 60.0, 0.05
"""The same of sharded models: seconds, or the share of what the run has taken if that is more."""

PROPOSED_BY = 24
"""The same where nothing is decided, and a few steps are to say what would be."""

Following = tuple[Any, ...] | None
"""The event that follows from an action, with what the next actions get; None: nothing follows."""


class AutoController:
    """The controller of one exchange, which makes its decisions; ``compress_ddp(model, "auto")`` makes it.

    Args:
        exchange: exchange whose main compressor is ``none``, and whose controller is this.
        shapes: names and shapes of all parameters, in the order of the network.
        budget: "exact", "safe" or "small".
        embeddings: names of the parameters of embeddings.
        decisions: ``report()`` of an earlier run, or the "decisions" in it, made again in the same steps; nothing is
            measured then.

    Attributes:
        budget: error that choices may add.
        proposal: decision that ``propose`` keeps from being made: the seconds of a step with it and with each method
            alone, and the rows of the buckets; None: it is not known yet.
        state: state in ``states.TABLE``.
        recorder: the part that measures the steps.
        model: the part that predicts them.

    Raises:
        ConfigError: a budget or a decision that there is not.
    """

    def __init__(
        self,
        exchange: Exchange,
        shapes: Sequence[Named],
        budget: str = "safe",
        embeddings: Iterable[str] = (),
        decisions: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.budget: ErrorBudget = budget_of(budget)
        # The exchange holds this: a cycle would keep its process group until the garbage collector comes.
        self._exchange = weakref.ref(exchange)
        self._bears: Callable[[], bool] = lambda: False
        self._proposes = False
        self.proposal: dict[str, Any] | None = None
        self.recorder = StepRecorder(exchange)
        self.model = StepModel(exchange, shapes, self.budget, embeddings, self.recorder)
        self._reporter = Reporter(exchange, shapes, self.budget, self.model)
        self._decisions = Decisions(shapes, decisions)
        self._restart()
        exchange.watch(self)

    def _restart(self) -> None:
        self.recorder.restart()
        self.model.restart()
        self._reporter.restart()
        self._search, self._setback = Search(self.model, self.budget), Setback(LONGEST)
        self.state = AutoState.WATCHING
        if self._decisions.repeated is not None:
            self.state = AutoState.REPLAYING
            self._reporter.repeat([])
        self._seen: StepWindow | None = None
        self._watched = 0
        """Uncompressed steps since something was tried or left."""
        self._untried: list[Choice] = []
        self._trying: list[Choice] = []
        self._rested_at: tuple[StepWindow, Wire] | None = None
        """The uncompressed steps, and the link, with which nothing was to be gained."""
        self._changed: StepWindow | None = None
        """The uncompressed steps that were not as those any more."""
        self._uncompressed_since = self.exchange.step
        """The step from which on steps have been uncompressed."""
        self._drained_for = 0
        """The steps since the last switch in which residuals of a method that was left have waited to be sent."""

    # What frontends and the exchange call.

    @property
    def exchange(self) -> Exchange:
        """The exchange that this decides for."""
        exchange = self._exchange()
        assert exchange is not None
        return exchange

    @property
    def phase(self) -> str:
        """The phase: "watching", "probing", "holding" or "replaying"."""
        return self.state.phase

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The decisions that were made, each with its step and the choices."""
        return self._decisions.made

    def scatter(
        self,
        check: Callable[[Compressor], None],
        buffers: Callable[[], int | None] = lambda: None,
        weights: WeightControl | None = None,
    ) -> None:
        """Declare that gradients are reduced to their owners; to be called once, before the first step.

        Args:
            check: refuses a method that a reduce-scatter cannot carry.
            buffers: returns how many reductions may be under way while gradients are computed; None: any number, on all
                ranks.
            weights: part that gathers the weights; None: nobody watches it.

        Raises:
            ConfigError: ``check`` refuses a method in the decisions that are to be made again.
        """
        self.recorder.scatter(buffers, weights)
        self.advise_nothing()
        self._decisions.scatter(check)
        self.model.scatter()

    def follow_optimizers(self, bears: Callable[[], bool]) -> None:
        """Ask ``bears`` from now on whether the optimizers are known and bear what is kept back."""
        self._bears = bears

    def bears(self) -> bool:
        """Return whether the optimizers of this rank are known to bear what is kept back."""
        return self._bears()

    def advise_nothing(self) -> None:
        """Never name the exchange of the optimizer's steps, because it is impossible here."""
        self._reporter.advise_nothing()

    def propose(self) -> None:
        """Decide nothing from now on: what would be decided is kept as ``proposal``, and steps stay uncompressed."""
        self._proposes = True

    @property
    def knows(self) -> bool:
        """Return whether it has decided, has a proposal, or knows that nothing is to be gained."""
        return bool(self.decisions) or self.proposal is not None or self._rested_at is not None

    def bar(self, names: tuple[str, ...]) -> None:
        """Leave a bucket uncompressed from the next step on. All ranks must call it, between the same two steps."""
        self.model.barred.add(names)

    def disturb(self) -> None:
        """Note that something else is done in the current step, so its times do not count."""
        self.recorder.record.disturbed = True

    def expected_error(self, names: tuple[str, ...], own: float, mean: float) -> tuple[str, float] | None:
        """Predict the error of a bucket's mean as ``StepModel`` does; the method is in words."""
        found = self.model.expected_error(names, own, mean)
        return None if found is None else (self._reporter.label(found[0]), found[1])

    def begin(self) -> None:
        """Begin a step; the one before is complete."""
        self._drained_for = self._drained_for + 1 if bool(self.exchange.leftovers.waiting) else 0
        self.recorder.begin(every=self.state is not AutoState.RESTING, counts=self.state is not AutoState.REPLAYING)

    @property
    def timed(self) -> bool:
        """Return whether the buckets of the current step are to be noted."""
        return self.recorder.record.timed and self.state is not AutoState.REPLAYING

    @property
    def probing(self) -> bool:
        """Return whether a candidate is being tried in this step, on the thread that computes."""
        return bool(self._trying)

    @property
    def reads(self) -> bool:
        """Return whether the numbers of the gradients of this step may be read, and not only their times."""
        return self.timed and (self.probing or self.recorder.nearly_full or not self.recorder.record.runs)

    @property
    def idle(self) -> bool:
        """Return whether the current step is uncompressed, and needed only for its times, if at all."""
        watched = self.state is AutoState.WATCHING and not self.recorder.nearly_full
        free = watched or self.state is AutoState.RESTING
        return free and not self.exchange.methods.assigned and not self._drains

    @property
    def _drains(self) -> bool:
        """Return whether the current step is exchanged because residuals of a method that was left wait to be sent.

        A parameter that nobody uses sends nothing, and may never be used again. So after some steps its residual is
        sent in one of those steps alone in which ranks tell each other something.
        """
        return bool(self.exchange.leftovers.waiting) and (self._drained_for <= LONGEST or self.glances)

    @property
    def glances(self) -> bool:
        """Return whether the current step, which is idle, is the one for ``glance``."""
        return self.state is AutoState.RESTING and self.recorder.full

    def glance(self) -> None:
        """See whether there is still nothing to be gained; all ranks call it, on the thread that exchanges.

        Nothing changes in this step: what has changed is looked at in the next one.
        """
        self._handle(Event.GLANCE)

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
        gathers: Gathers = NO_GATHERS,
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
            gathers: weights that were gathered since the bucket before, for which what computes stood still, too.

        Returns:
            The record of the bucket, for ``started`` and ``after``; None where nothing is measured.
        """
        recorder = self.recorder
        blocking, ready = blocking or ready is None, recorder.begun if ready is None else ready
        recorder.note_itemsize(params, itemsize)
        if not recorder.record.runs:
            self._begin_exchange(ready)
        if not self.timed:
            return None
        for each in self._trying:
            recorder.record.disturbed = True
            self.model.try_on(each, flat, params)
        wanted = recorder.last and self.state is not AutoState.RESTING
        norm_of = (flat if own is None else own) if wanted else None
        return recorder.prepared(params, ready, held, gathers, blocking=blocking, norm_of=norm_of)

    def started(self, run: BucketRun | None) -> None:
        """Note that another thread takes a bucket that was prepared before; ``run`` is what ``before`` returned."""
        if run is not None:
            self.recorder.started(run)

    def after(self, flat: Tensor, run: BucketRun | None, multiplied: float = 1.0) -> None:
        """Note that the bucket was exchanged.

        Args:
            flat: the mean, where gradients are reduced to their owners this rank's own part of it.
            run: record that ``before`` made.
            multiplied: factor by which the mean was multiplied.
        """
        if run is not None:
            self.recorder.after(flat, run, multiplied)

    # Reports and saved states.

    def to_config(self) -> dict[str, Any]:
        """The configuration that must be the same on all ranks."""
        return {"budget": self.budget.name, "decisions": self._decisions.repeated}

    def metrics(self) -> dict[str, Any]:
        """Return the figures of the link and of a step, None until they are known; times in seconds."""
        return {"auto_phase": self.phase, **self._reporter.figures(self._seen)}

    def report(self) -> dict[str, Any]:
        """Return the choices and the reasons for them, as plain numbers and words."""
        chosen = self._reporter.report(self._seen)
        decisions = [dict(each) for each in self.decisions]
        return {"budget": self.budget.name, "phase": self.phase, **chosen, "decisions": decisions}

    def announcement(self) -> str:
        """The line that is shown when an exchange begins with this."""
        return self._reporter.announcement(repeats=self.state is AutoState.REPLAYING)

    def status(self) -> list[tuple[str, str]]:
        """Return what it has chosen, why and what it waits for, in words: pairs of a subject and a sentence."""
        since = self.decisions[-1]["step"] if self.decisions else None
        return self._reporter.status(self._doing(), self._seen, since)

    def _doing(self) -> str:
        """Describe what happens now, and what is waited for."""
        unsettled = self.model.dense is not None and not self.model.norms.settled
        watches = f"it watches uncompressed steps, {len(self.recorder.steps)} of {self.recorder.length}"
        seen, longest = self._seen, ""
        if seen is not None and self.model.scatters and PATIENCE * seen.period > self._patience(seen):
            longest = f", or {time_text(self._patience(seen))}"
        settles = f"it waits for gradients to settle: {self._watched} of at most {PATIENCE} steps{longest}"
        rests = "nothing is to be gained now; some steps are timed to see whether that stays so"
        return {
            AutoState.WATCHING: settles if unsettled else watches,
            AutoState.RESTING: rests,
            AutoState.WOKEN: rests,
            AutoState.PROBING: f"it tries methods, {len(self._untried) + len(self._trying)} more",
            AutoState.HOLDING: "it watches whether its choice pays",
            AutoState.REPLAYING: "it repeats the decisions of an earlier run",
        }[self.state]

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
        self._decisions.check_state(state, frozen)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the methods of the last decision of a state that was checked, and watch how they do."""
        self._restart()
        decision = self._decisions.resume(state, self.exchange.step)
        # Decisions from before the state do not hold any more.
        self.exchange.assign({})
        self._gather_with(None)
        if decision is None:
            return
        choices, weights = decision["choices"], self._possible(decision.get("weights"))
        self._assign(choices)
        self._gather_with(weights)
        self._reporter.repeat(choices, weights)
        if (choices or weights) and self.state is AutoState.WATCHING:
            self._handle(Event.RESUMED)

    # The state machine.

    def _handle(self, event: Event, *found: Any) -> None:
        """Follow the table from an event, with arguments for its actions, until nothing more follows."""
        following: Following = (event, *found)
        while following is not None:
            event, *rest = following
            self.state, actions = TABLE[self.state][event]
            following = None
            for name in actions:
                assert following is None, f"only the last action of {event} may return an event"
                following = getattr(self, f"_{name}")(*rest)

    def _begin_exchange(self, ready: Moment) -> None:
        """Do whatever is due before the first bucket of a step that is exchanged here."""
        self.recorder.record.begun = ready
        # Here, before the first bucket of a step, because all ranks must switch between the same two buckets.
        if not self.model.barred.isdisjoint(self.model.current):
            current, barred = self.model.current, self.model.barred
            left = {names: each for names, each in current.items() if names not in barred}
            if left or self.model.weights is not None:
                self._switch_to(left, self.model.weights)
            else:
                self._handle(Event.NONE_LEFT, "what arrived of the last compressed bucket was wrong")
            return
        if self.glances:
            self.glance()
        full = self.recorder.full and Event.WINDOW_FULL in TABLE[self.state]
        self._handle(Event.WINDOW_FULL if full else Event.STEP)

    # Actions of all states.

    def _measure(self) -> Following:
        if self.state is AutoState.HOLDING and self.model.dense is None:
            return Event.UNKNOWN, "this run has not seen any yet"
        steps = len(self.recorder.steps)
        latency = self.recorder.latency(self.model.link.latency)
        seen = self.recorder.measure(bears=self.bears(), latency=latency)
        self._reporter.count_window(measured=seen is not None)
        if seen is None:
            return (Event.UNMEASURED,)
        self._watched += steps if self.state is AutoState.WATCHING else 0
        return Event.MEASURED, seen

    def _learn(self, seen: StepWindow) -> None:
        self.recorder.record.disturbed = True
        self._seen = seen
        self.recorder.follow(seen)
        self.model.learn(seen)

    def _choose(self, seen: StepWindow) -> Following:
        if self._proposes and self.model.link.wire is not None:
            self.proposal = self._reporter.proposal(self._search.best(seen))
            return Event.PROPOSED, seen
        proposal = self._search.better(seen)
        if proposal is None:
            return Event.KEPT, seen
        return Event.NONE_CHOSEN if proposal.plain else Event.CHOSEN, proposal

    def _switch(self, proposal: Proposal) -> None:
        self._switch_to(proposal.methods, proposal.weights)
        self._setback.decided(self.exchange.step)
        self._reporter.explain(proposal.seen, proposal.chosen, proposal.weights, proposal.stages)
        self._reporter.decided(proposal.seen)

    def _lengthen_window(self, _: StepWindow) -> None:
        self.recorder.lengthen()

    # Actions while steps are uncompressed.

    def _look_for_gain(self, seen: StepWindow) -> Following:
        """See whether anything may be gained by compressing, and whether that can be found out now."""
        model, exchange = self.model, self.exchange
        model.learn_uncompressed(seen)
        self._setback.compare(seen.period)
        self._reporter.explain_uncompressed(seen)
        rate = model.link.wire.rate if model.link.wire else math.inf
        if self._setback.forbids(rate, self._watched):
            return self._no_gain(seen, "because steps with a method took longer; it is tried again later")
        if seen.exposed < MARGIN * seen.period or exchange.channel.world == 1:
            return self._no_gain(seen, "because that is too little to gain anything")
        if self._waits_for_gradients(seen) or exchange.step <= exchange.methods.policy.start_after:
            return (Event.TOO_EARLY,)
        # Where a proposal is all that is wanted, windows get longer once there is one.
        if self.proposal is None:
            self.recorder.shorten()
        self._watched = 0
        model.find_hosts()
        return Event.TRIED if model.tried(seen) else Event.UNTRIED, seen

    def _waits_for_gradients(self, seen: StepWindow) -> bool:
        """Return whether gradients may settle, and there is time for another window until it tries in any case."""
        if self.model.norms.settled or self._watched >= (PROPOSED_BY if self._proposes else PATIENCE):
            return False
        steps = self.exchange.step - self._uncompressed_since + self.recorder.length
        return not self.model.scatters or steps * seen.period <= self._patience(seen)

    def _patience(self, seen: StepWindow) -> float:
        """The seconds for which gradients may settle, if all steps of the run have lasted as long as these."""
        return max(PATIENT_FOR, PATIENT_SHARE * self.exchange.step * seen.period)

    def _find_no_gain(self, seen: StepWindow) -> Following:
        return self._no_gain(seen, self._reporter.nothing_saves(seen, margin(seen)))

    def _no_gain(self, seen: StepWindow, why: str) -> Following:
        # Only once it is known how much of the gradients is noise may steps go by untimed.
        known = self.model.norms.settled and self.model.link.wire is not None
        return (Event.NO_GAIN, seen, why) if known else (Event.NO_GAIN_YET, seen)

    def _rest(self, seen: StepWindow, why: str) -> None:
        wire = self.model.link.wire
        assert wire is not None
        self._rested_at = seen, wire
        if self._setback.expired(self._watched):
            # It was looked at again, and nothing is to be gained: the next look comes as much later.
            self._watched = 0
        self.recorder.rest()
        self._reporter.stays_uncompressed(seen, why)

    def _glance(self) -> Following:
        assert self._rested_at is not None
        known, link = self._rested_at
        seen = self.recorder.measure(bears=self.bears(), latency=self.model.link.latency)
        # Before anything is judged, so that the next steps go by untimed also where this window shows nothing.
        self.recorder.rest()
        if seen is None:
            return None
        self._watched += LONGEST
        wire = self.model.link_of(seen)
        as_before = wire is not None and unchanged(seen, known, wire.rate / link.rate)
        if wire is None or not as_before or self._setback.expired(self._watched):
            return Event.CHANGED, seen
        self._seen = seen
        self.model.update(seen, wire)
        return None

    def _wake(self, seen: StepWindow) -> None:
        self._changed = seen

    def _judge_change(self) -> Following:
        seen, self._changed, self._rested_at = self._changed, None, None
        assert seen is not None
        self.recorder.stop_resting()
        return Event.MEASURED, replace(seen, latency=self.recorder.agreed_ping())

    def _begin_trials(self, _: StepWindow) -> None:
        self._untried = self.model.trials

    def _try_next(self, *_: StepWindow) -> Following:
        # Where steps are long, what is tried takes little of them, and the steps most of the time until it decides.
        several = self.model.scatters and self._seen is not None and self._seen.period >= LASTING
        count = len(self._untried) if several else 1
        self._trying, self._untried = self._untried[:count], self._untried[count:]
        return None if self._trying else (Event.ALL_TRIED, self._seen)

    def _share_trials(self, seen: StepWindow) -> None:
        self.model.share_trials(seen.buckets)
        self.recorder.restart_window(switched=False)

    # Actions while buckets have methods.

    def _look_for_loss(self, seen: StepWindow) -> Following:
        """See whether steps are as fast as they should be, and whether that can be known."""
        model, chosen = self.model, [self.model.choice(params) for params in seen.buckets]
        self._reporter.explain(seen, chosen, model.weights)
        if model.dense is None or model.link.wire is None or [*model.dense.buckets] != [*seen.buckets]:
            # Loaded, or buckets were rebuilt: uncompressed steps must be seen first.
            return Event.UNKNOWN, "uncompressed steps of these buckets are not known yet"
        model.learn_contention(seen)
        if model.link.misses.doubted:
            return Event.DOUBTED, "messages take another time than the link's model says, or the link has changed"
        if not seen.bears and any(each.keeps for each in chosen):
            why = "an optimizer divides by the size of recent gradients and does not bear what waits"
            return Event.NOT_BORNE, why
        uncompressed = model.uncompressed(seen)
        if seen.period > uncompressed * (1 + MARGIN / 2):
            why = f"{time_text(seen.period)} a step, uncompressed ones take {time_text(uncompressed)}"
            return Event.SLOWER, why
        if self._setback.doubts(self.exchange.step, seen, model.dense):
            return Event.DOUBTED, "what is gained is little, and uncompressed steps may have become faster, too"
        return Event.PAYS, seen

    def _note_setback(self, _: str) -> None:
        assert self._seen is not None
        assert self.model.link.wire is not None
        self._setback.note(self.model.link.wire.rate, self._seen.period)

    def _keep_rest(self, _: str) -> None:
        assert self._seen is not None
        self.model.keep_rest(self._seen)

    def _leave_methods(self, why: str) -> None:
        self._reporter.left_methods(why)
        self._switch_to({}, None)
        self._watched, self._uncompressed_since = 0, self.exchange.step
        if self._seen is not None:
            self._reporter.explain_uncompressed(self._seen)

    def _show_effect(self, seen: StepWindow) -> None:
        self._reporter.show_effect(seen)

    # Actions of runs that repeat decisions, and what switches.

    def _repeat_decision(self) -> None:
        if self.recorder.record.disturbed:
            return  # This is not the first bucket: buckets are not recorded.
        # The messages of the measurement are in this step, so its times do not count.
        self.recorder.record.disturbed = True
        for decision in self._decisions.due(self.exchange.step):
            weights = self._possible(decision.get("weights"))
            self._assign(decision["choices"])
            self._gather_with(weights)
            self._reporter.repeat(decision["choices"], weights)

    def _switch_to(self, methods: Mapping[tuple[str, ...], Choice], weights: str | None) -> None:
        """Switch to other choices in this step, uncompressed where none is named, and for weights in the next one."""
        choices: dict[str, dict[str, Any]] = {}
        for names, choice in methods.items():
            choices.setdefault(choice.label, {**choice.to_config(), "params": []})["params"] += names
        # Noted before it is carried out, so that a checkpoint of this step has it.
        self._decisions.add(self.exchange.step, list(choices.values()), weights)
        self._assign(list(choices.values()))
        self._gather_with(weights)
        self.model.use(methods, weights)
        # Plans and buffers are made in the next steps, whose times tell nothing.
        self.recorder.restart_window(switched=True)
        self._drained_for = 0

    def _possible(self, weights: str | None) -> str | None:
        """The method for weights of an earlier decision, where it can be used here."""
        control = self.recorder.weights
        return weights if control is not None and control.method == weights else None

    def _gather_with(self, weights: str | None) -> None:
        """Let weights be gathered with a method, where that is decided here."""
        control = self.recorder.weights
        if control is not None and control.method is not None:
            control.use(weights)

    def _assign(self, choices: Sequence[Mapping[str, Any]]) -> None:
        assigned = {}
        for each in choices:
            choice = from_config(each)
            code = self.model.code(choice)
            assigned.update({name: (code(name), choice.strategy) for name in each["params"]})
        self.exchange.assign(assigned)
