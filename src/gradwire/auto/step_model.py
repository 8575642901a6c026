"""Predicting: how long a step takes, and which error it adds, with a candidate for each of its buckets.

A step is the queue of ``timeline.py``. For a bucket and a candidate it has

    seconds     those of the code as probed, later as seen in use; those of its messages by the model of the link
    rest        of the step: what it takes without an exchange. Where a code slows the backward pass down because both
                want the processor, the rest has grown since steps were uncompressed, and counts for every code

So a step that is slower than uncompressed ones were is not chosen again, and uncompressed steps, made anew, correct
what was known of them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from torch import Tensor

from gradwire.auto.choices import (
    DENSE,
    MESSAGES,
    Choice,
    Coded,
    ErrorBudget,
    candidates,
    candidates_on_hosts,
    edges,
    exact_mean,
    finer,
    from_config_of,
    noise_added,
)
from gradwire.auto.decide import Option, Stage, finish
from gradwire.auto.gradient_norms import GradientNorms, names_of, shares_of
from gradwire.auto.hysteresis import MARGIN
from gradwire.auto.link_cost import Wire
from gradwire.auto.link_model import LinkModel, rounds_of
from gradwire.auto.probe import Probed, probe
from gradwire.auto.recorder import StepRecorder
from gradwire.auto.shared_link import GatheredWeights
from gradwire.auto.step_record import StepWindow, reduced
from gradwire.auto.traffic import PredictedTraffic, dense_traffic, shared, traffic
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import Named, carries
from gradwire.engine.strategies.reduce_scatter import rounds_to_owners
from gradwire.transport.collective_round import Round

__all__ = ["StepModel"]

GATHERS = "gathers"
"""Name of the gathers of weights beside the labels of choices."""


class StepModel:
    """The model of an exchange's steps.

    Args:
        exchange: exchange whose steps are predicted.
        shapes: names and shapes of all parameters, in the order of the network.
        budget: error that candidates may add.
        embeddings: names of the parameters of embeddings.
        recorder: recorder of the steps, which knows how buckets travel uncompressed.

    Attributes:
        candidates: choices of each bucket, the uncompressed one first.
        current: choice of each bucket that has a method, by the names of its parameters.
        weights: method with which weights are gathered now because it was chosen; None: they are gathered as without
            ``auto``.
        barred: buckets that stay uncompressed, because what arrived of them was more wrong than expected.
        dense: the last window of uncompressed steps; None: there was none since the start.
        link: model of the link.
        norms: norms of the gradients.
    """

    def __init__(
        self,
        exchange: Exchange,
        shapes: Sequence[Named],
        budget: ErrorBudget,
        embeddings: Iterable[str],
        recorder: StepRecorder,
    ) -> None:
        self._exchange: Exchange = weakref.proxy(exchange)
        self._recorder, self._budget = recorder, budget
        self._edges = edges(shapes, embeddings)
        self.candidates = candidates(budget, exchange.channel.world)
        self.barred: set[tuple[str, ...]] = set()
        self.link = LinkModel(exchange)
        self.restart()

    def restart(self) -> None:
        """Forget what was measured."""
        self.link.restart()
        self.norms = GradientNorms()
        self.current: dict[tuple[str, ...], Choice] = {}
        self.weights: str | None = None
        self._beyond: dict[str | None, tuple[float, ...]] = {}
        self.dense: StepWindow | None = None
        self._probed: dict[tuple[tuple[str, ...], Choice], Probed | None] = {}
        self._in_use: dict[tuple[tuple[str, ...], Choice], float] = {}
        self._contention = 0.0
        self._rest_in_use: float | None = None
        self._messages: dict[tuple[tuple[str, ...], Choice, int], PredictedTraffic] = {}

    def scatter(self) -> None:
        """Predict steps in which gradients are reduced to their owners."""
        world = self._exchange.channel.world
        choices = [from_config_of(each, MESSAGES) for each in self._budget.methods if world > 1]
        self.candidates = [DENSE, *(each for each in choices if carries(each.strategy, each.compressor))]

    @property
    def ways_of_weights(self) -> list[str | None]:
        """The methods for weights; the first, None, leaves them as they are without ``auto``."""
        control = self._recorder.weights
        return [None] if control is None or control.method is None else [None, control.method]

    @property
    def trials(self) -> list[Choice]:
        """The candidates that are tried on buckets, those for weights among them: only their times count."""
        gathered = self.dense is not None and any(each.plain > each.coded for each in self.dense.gathers)
        ways = self.ways_of_weights[1:] if gathered else []
        return [*self.candidates[1:], *(from_config_of(each, MESSAGES) for each in ways if each is not None)]

    def find_hosts(self) -> None:
        """Ask once which ranks share a host; where several do, what hosts send together is another candidate.

        Where gradients are reduced to their owners, only methods that keep nothing back: a rank encodes no part but
        those of owners that have its own number on their hosts.
        """
        if self.link.find_hosts():
            self._messages.clear()
            scatters = self.scatters
            carried = {each.method for each in self.candidates if not (scatters and each.keeps)}
            found = candidates_on_hosts(self._budget)
            self.candidates = [*self.candidates, *(each for each in found if not scatters or each.method in carried)]

    @property
    def scatters(self) -> bool:
        """Return whether gradients are reduced to their owners."""
        return self._recorder.scatters

    def choice(self, params: Sequence[Named]) -> Choice:
        """The choice that a bucket has now."""
        return self.current.get(names_of(params), DENSE)

    def code(self, choice: Choice) -> Callable[[str], Compressor]:
        """The compressor that each parameter has in a bucket of this choice, by its name."""
        few = finer(choice)
        return lambda name: few if name in self._edges else choice.compressor

    # What is learned.

    def learn(self, seen: StepWindow) -> None:
        """Learn from a window about the link, the codecs in use, and the gradients."""
        self.link.latency = seen.latency
        sent, busy = self._loads(seen)
        unsure = math.hypot(seen.uncertain, self.dense.uncertain if self.dense is not None else 0.0)
        # Before the link is measured anew: the first window of a choice shows how the choice differs from the link as
        # it was.
        self.link.correct(self._by_label(seen, sent, busy), unsure, partial(self._is_better, seen))
        self.link.wire = self.link_of(seen) or self.link.wire
        for i, params in enumerate(seen.buckets):
            messages = busy[i] if self._exchange.device.type == "cuda" else seen.communicated[i]
            self._in_use[names_of(params), self.choice(params)] = max(0.0, seen.total[i] - messages)
        if seen.gathers and self.link.wire is not None:
            pairs = zip(seen.gathers, seen.gather_seconds, strict=True)
            self._beyond[self.weights] = tuple(waits - self._on_link(each.sent, each) for each, waits in pairs)
        shares = shares_of(seen)
        if shares:
            exact = ((params, own, self._exact(params, own, mean)) for params, own, mean in shares)
            self.norms.learn([each for each in exact if not self.choice(each[0]).keeps])

    def learn_uncompressed(self, seen: StepWindow) -> None:
        """Take a window, of which ``learn`` knows, for the uncompressed steps with which others are compared."""
        self.dense = seen
        # Only now it is known what was the choice's doing, and what the link's.
        self.link.misses.settle(self.link.wire)
        if self._rest_in_use is not None:
            self._contention, self._rest_in_use = max(0.0, self._rest_in_use - seen.rest), None

    def learn_contention(self, seen: StepWindow) -> None:
        """Take in by how much the rest of a step has grown since steps were uncompressed."""
        assert self.dense is not None
        self._contention = max(0.0, seen.rest - self.dense.rest)

    def keep_rest(self, seen: StepWindow) -> None:
        """Compare the rest of these steps with that of the next uncompressed ones."""
        self._rest_in_use = seen.rest

    def link_of(self, seen: StepWindow) -> Wire | None:
        """The link as a window shows it; None where nothing travelled."""
        sent, busy = self._loads(seen)
        labels = [self.choice(params).label for params in seen.buckets]
        if not seen.gathers:
            return self.link.measured(sent, busy, labels)
        # What else was busy are the gathers.
        gathers = PredictedTraffic((), tuple(chain.from_iterable(_rounds(each.sent, each) for each in seen.gathers)))
        rest = max(0.0, seen.link.busy - sum(busy))
        return self.link.measured([*sent, gathers], [*busy, rest], [*labels, GATHERS])

    def update(self, seen: StepWindow, wire: Wire) -> None:
        """Take over uncompressed steps that were as they had been before, and the link as they show it."""
        self.dense, self.link.wire = seen, wire

    def use(self, methods: Mapping[tuple[str, ...], Choice], weights: str | None) -> None:
        """Predict from now on with other choices in use; buckets that are not named travel uncompressed."""
        self.current, self.weights = dict(methods), weights
        self.link.switched()

    def _exact(self, params: Sequence[Named], own: float, mean: float) -> float:
        """The squared norm of the exact mean of a bucket, of which one has arrived."""
        choice = self.choice(params)
        if choice.dense:
            return mean
        coded = None if choice.keeps else self._coded(params, choice, own, mean)
        return 0.0 if coded is None else exact_mean(mean, coded)

    def _loads(self, seen: StepWindow) -> tuple[list[PredictedTraffic], list[float]]:
        """The messages of each bucket, and the seconds that they took."""
        sent = [self._traffic(params, self.choice(params)) for params in seen.buckets]
        return sent, [self._in_messages(seen, i) for i in range(len(seen.buckets))]

    def _by_label(
        self, seen: StepWindow, sent: Sequence[PredictedTraffic], busy: Sequence[float]
    ) -> dict[str, tuple[list[Round], float]]:
        """The rounds of each method in use, and the seconds that they took."""
        found: dict[str, tuple[list[Round], float]] = {}
        for params, one, time in zip(seen.buckets, sent, busy, strict=True):
            choice = self.choice(params)
            if not choice.dense:
                rounds, taken = found.get(choice.label, ([], 0.0))
                found[choice.label] = [*rounds, *rounds_of(one)], taken + time
        return found

    def _in_messages(self, seen: StepWindow, place: int) -> float:
        """The seconds of a bucket's messages; on a GPU, where nobody can measure them, all but those of its code."""
        if self._exchange.device.type != "cuda":
            return seen.sharing * seen.communicated[place]
        params = seen.buckets[place]
        return max(0.0, seen.total[place] - self._coding(params, self.choice(params)))

    def _is_better(self, seen: StepWindow, missed: float) -> bool:
        """Return whether the present steps beat uncompressed ones, whichever of choice and link missed by a factor."""
        wire = self.link.wire
        if self.dense is None or wire is None or [*self.dense.buckets] != [*seen.buckets]:
            return False
        uncompressed = []
        for rate in (wire.rate, wire.rate / missed):
            with self.link.taken_as(rate):
                uncompressed.append(self.uncompressed(seen))
        # Nobody knows which explanation is right, so the one that speaks against the choices counts.
        return seen.period < (1 - MARGIN) * min(uncompressed)

    # Trials of candidates.

    def tried(self, seen: StepWindow) -> bool:
        """Return whether all candidates were tried on the buckets of a window."""
        every = [DENSE, *self.trials]
        return all((names_of(params), each) in self._probed for params in seen.buckets for each in every)

    def try_on(self, choice: Choice, flat: Tensor, params: Sequence[Named]) -> None:
        """Try a candidate on a bucket of this step, on this rank."""
        self._probed[names_of(params), choice] = self.probe(choice, flat, params)

    def probe(self, choice: Choice, flat: Tensor, params: Sequence[Named]) -> Probed | None:
        """Probe a candidate on a bucket, or, where gradients are reduced to their owners, on the part of one."""
        world, size = self._exchange.channel.world, self.link.size
        if not self.scatters:
            return probe(self._exchange, choice, self.code(choice), flat, params, world, size)
        # A rank encodes as many parts as it sends messages, its own among them, and decodes as many for its own part.
        parts = world // size if choice.on_hosts else world
        alone = from_config_of(choice.method, MESSAGES)
        found = probe(self._exchange, alone, self.code(alone), flat, params, 1)
        return None if found is None else replace(found, seconds=parts * found.seconds)

    def share_trials(self, buckets: Iterable[Sequence[Named]]) -> None:
        """Share what all ranks have measured; they must call it alike.

        The seconds of the slowest rank count, and the largest error. Rebuilt buckets were not tried on any rank.
        """
        buckets = list(buckets)
        keys = [(names_of(params), each) for params in buckets for each in self.trials]
        flat = []
        for key in keys:
            found = self._probed.get(key)
            error = math.inf if found is None or not math.isfinite(found.omega) else found.omega
            flat += [math.inf if found is None else found.seconds, error]
        # Each rank has measured other times, and all must decide by the same numbers.
        largest = reduced(flat, self._exchange.channel, self._exchange.device, "max")
        for i, key in enumerate(keys):
            seconds, omega = largest[2 * i : 2 * i + 2]
            if math.isfinite(seconds) and not math.isfinite(omega):
                self._probed.pop(key, None)  # A gradient was not finite in that step: it is tried again.
            else:
                self._probed[key] = Probed(seconds, omega) if math.isfinite(seconds) else None
        for params in buckets:
            self._probed[names_of(params), DENSE] = None

    # Predictions.

    def seconds(self, params: Sequence[Named], choice: Choice) -> float:
        """Predict the seconds for which a bucket occupies the communication thread."""
        wire = self.link.wire
        assert wire is not None
        sent = self._traffic(params, choice)
        factor = 1.0 if choice.dense else self.link.misses.expected(choice.label)
        return self._coding(params, choice) + factor * sum(wire.seconds(each) for each in rounds_of(sent))

    def sent(self, buckets: Iterable[Sequence[Named]], choice: Callable[[Sequence[Named]], Choice]) -> float:
        """Predict the bytes that a rank sends in a step."""
        return sum(each.sent for params in buckets for each in rounds_of(self._traffic(params, choice(params))))

    def stages(self, seen: StepWindow, weights: str | None) -> list[Stage]:
        """The candidates of each bucket, with times, and with errors relative to the batch's own variance.

        Args:
            seen: window whose buckets these are.
            weights: method with which weights are gathered.
        """
        noise, stages, asked = self.noise(seen), list[Stage](), 0.0
        gathers = self.gathers(seen, weights)
        for params, ready, blocking, waits in zip(seen.buckets, seen.ready, seen.blocking, gathers, strict=True):
            own, mean = self.norms.of(params, math.inf)
            options: list[Option | None] = []
            for choice in self.candidates:
                names = names_of(params)
                tried = self._probed.get((names, choice)) is not None and names not in self.barred
                known = choice.dense or (noise and tried)
                if not known or (choice.keeps and not (self._budget.kept and seen.bears)):
                    options.append(None)
                else:
                    # A value that is kept back is not lost and adds no variance; the test above has allowed it.
                    added = 0.0 if choice.dense else self._added(params, choice, own, mean) / noise
                    share = self._budget.variance / (8 * len(seen.buckets))
                    error = min(added, share) if choice.keeps else added
                    options.append(Option(self.seconds(params, choice), error))
            stages.append(Stage(ready, options, blocking, waits, asked))
            asked = ready
        return stages

    def gathers(self, seen: StepWindow, weights: str | None) -> list[float]:
        """Predict the seconds of the gathers before each bucket, with a method that is in use or was tried.

        Of a method in use what they take beyond the model of the link is known: it is less than nothing where what is
        computed hides them.
        """
        if not seen.gathers:
            return [0.0] * len(seen.buckets)
        sizes = [self.sent_for_weights(each, weights) for each in seen.gathers]
        known = self._beyond.get(weights, ())
        if len(known) != len(sizes):
            known = tuple(self._coding_weights(seen, weights, each) for each in seen.gathers)
        pairs = zip(seen.gathers, sizes, known, strict=True)
        return [max(0.0, self._on_link(size, each) + more) for each, size, more in pairs]

    def sent_for_weights(self, each: GatheredWeights, weights: str | None) -> float:
        """The bytes that a rank sends in gathers, with a method for weights."""
        if len(self.ways_of_weights) == 1:
            return each.sent
        return each.plain if weights is None else each.coded

    def knows_weights(self, seen: StepWindow, weights: str | None) -> bool:
        """Return whether a method for weights can be chosen: there are gathers, and it was tried."""
        gathered = any(each.plain > each.coded for each in seen.gathers)
        return weights is None or (gathered and bool(self._tried_for_weights(seen, weights)))

    def _tried_for_weights(self, seen: StepWindow, weights: str) -> list[tuple[int, float]]:
        """The elements of each bucket on which a method for weights was tried, and the seconds of its code there."""
        choice = from_config_of(weights, MESSAGES)
        found = [(_numel(params), self._probed.get((names_of(params), choice))) for params in seen.buckets]
        return [(numel, each.seconds) for numel, each in found if each is not None]

    def _coding_weights(self, seen: StepWindow, weights: str | None, each: GatheredWeights) -> float:
        """The seconds of coding in gathers."""
        known = [] if weights is None else self._tried_for_weights(seen, weights)
        return each.numel * sum(seconds for _, seconds in known) / max(1, sum(numel for numel, _ in known))

    def _on_link(self, sent: float, each: GatheredWeights) -> float:
        """The seconds of gathers in which a rank sends so many bytes, on a link that nothing else uses."""
        wire = self.link.wire
        assert wire is not None
        return sum(wire.seconds(one) for one in _rounds(sent, each))

    def noise(self, seen: StepWindow) -> float:
        """The variance that sampling the batch leaves in the mean gradient."""
        return self.norms.noise(seen.buckets, self._exchange.channel.world)

    def rest(self, seen: StepWindow) -> float:
        """The seconds of an uncompressed step that no candidate changes."""
        return (self.dense or seen).rest

    def predicted(
        self,
        chosen: Sequence[Choice],
        seen: StepWindow,
        stages: Sequence[Stage] | None = None,
        weights: str | None = None,
    ) -> float:
        """The predicted seconds of a step: those that no choice changes, and those until the last bucket is done.

        Args:
            chosen: choice of each bucket.
            seen: window whose buckets these are.
            stages: result of ``stages`` for these and for ``weights``; None: they are made.
            weights: method with which weights are gathered.
        """
        places = [self.candidates.index(each) for each in chosen]
        done = finish(stages or self.stages(seen, weights), places, seen.buffers) if seen.buckets else 0.0
        coded = weights is not None or any(not each.dense for each in chosen)
        busy = self._contention if coded else 0.0
        return self.rest(seen) + busy + max(done, seen.ready[-1])

    def uncompressed(self, seen: StepWindow) -> float:
        """The predicted seconds of an uncompressed step."""
        return self.predicted([DENSE] * len(seen.buckets), seen)

    def alone(self, seen: StepWindow, stages: Sequence[Stage]) -> dict[Choice, float]:
        """The predicted seconds of a step with each candidate that all buckets may have, alone."""
        every = [i for i in range(len(self.candidates)) if all(stage.options[i] is not None for stage in stages)]
        whole = len(seen.buckets)
        return {each: self.predicted([each] * whole, seen, stages) for each in (self.candidates[i] for i in every)}

    def expected_error(self, names: tuple[str, ...], own: float, mean: float) -> tuple[Choice, float] | None:
        """Predict the error of a bucket's mean as its method is now.

        Args:
            names: names of its parameters.
            own: mean over the ranks of the squared norms of their own gradients.
            mean: squared norm of the exact mean gradient.

        Returns:
            The method, and the expected squared norm of the error; None where the bucket travels uncompressed, or its
            method was not tried in this run.
        """
        choice, params = self.current.get(names, DENSE), [(name, ()) for name in names]
        coded = None if choice.dense or choice.keeps else self._coded(params, choice, own, mean)
        return None if coded is None else (choice, noise_added(mean, coded))

    def options(self, stages: Sequence[Stage], chosen: Sequence[Choice]) -> list[Option | None]:
        """The option that each bucket's choice is; None where it cannot be chosen."""
        return [stage.options[self.candidates.index(each)] for stage, each in zip(stages, chosen, strict=True)]

    def _traffic(self, params: Sequence[Named], choice: Choice) -> PredictedTraffic:
        """The messages of a bucket; they are predicted once, because it takes longer the more ranks there are."""
        key = (names_of(params), choice, self._itemsize(params))
        found = self._messages.get(key)
        if found is None:
            found = self._messages[key] = self._predict_messages(params, choice)
        return found

    def _predict_messages(self, params: Sequence[Named], choice: Choice) -> PredictedTraffic:
        world, policy = self._exchange.channel.world, self._exchange.methods.policy
        if self.scatters:
            return self._scattered(params, choice)
        if choice.dense:
            codes = self._overridden(params)
            plain = [(name, shape) for name, shape in params if name not in codes]
            own = [(each, codes[each[0]]) for each in params if each[0] in codes]
            beside = (traffic(shared([each], code, world, policy), world) for each, code in own)
            rounds = tuple(chain.from_iterable(rounds_of(each) for each in beside))
            return PredictedTraffic(dense_traffic(_numel(plain), world, self._itemsize(params)), rounds)
        strategy = choice.strategy.with_hosts_of(self.link.size)
        return traffic(shared(params, choice.compressor, world, policy, strategy, main=self.code(choice)), world)

    def _overridden(self, params: Sequence[Named]) -> dict[str, Compressor]:
        """The methods that options give to some parameters of a bucket in any case, by name."""
        chosen = {name: self._exchange.methods.policy.choose(name, shape, DENSE.compressor) for name, shape in params}
        return {name: code for name, code in chosen.items() if code is not None and not capabilities.identity(code)}

    def _scattered(self, params: Sequence[Named], choice: Choice) -> PredictedTraffic:
        """Predict the one round of a reduce-scatter; the shapes are those of the parts of one owner."""
        code, policy, sent = self.code(choice), self._exchange.methods.policy, 0.0
        channel, numel, itemsize = self._exchange.channel, _numel(params), self._itemsize(params)
        own_codes = self._overridden(params) if choice.dense else {}
        if choice.dense and not channel.is_nccl and not own_codes:
            # FSDP reduces by itself then, and on Gloo its reduce-scatter is an all-reduce inside.
            return PredictedTraffic(dense_traffic(channel.world * numel, channel.world, itemsize), ())
        for name, shape in params:
            own = own_codes.get(name) if choice.dense else policy.choose(name, shape, code(name))
            plain = itemsize if choice.dense else 4
            sent += plain * math.prod(shape) if own is None else capabilities.traffic(own, shape)
        size = self.link.size if choice.on_hosts else 1
        return PredictedTraffic((), rounds_to_owners(sent, channel.world, 4 * numel, size))

    def _itemsize(self, params: Sequence[Named]) -> int:
        return self._recorder.itemsizes.get(names_of(params), 4)

    def _coding(self, params: Sequence[Named], choice: Choice) -> float:
        """The seconds of a bucket outside its messages: as measured in use, or as probed."""
        key = (names_of(params), choice)
        probed = self._probed.get(key)
        return self._in_use.get(key, probed.seconds if probed is not None else 0.0)

    def _added(self, params: Sequence[Named], choice: Choice, own: float, mean: float) -> float:
        """The variance that a choice adds to the mean gradient of a bucket; infinite if it is not known."""
        coded = self._coded(params, choice, own, mean)
        return math.inf if coded is None else noise_added(mean, coded)

    def _coded(self, params: Sequence[Named], choice: Choice, own: float, mean: float) -> Coded | None:
        """Return what the error that a choice adds to a bucket follows from; None if its code was not measured."""
        probed = self._probed.get((names_of(params), choice))
        if probed is None:
            return None
        senders = world = self._exchange.channel.world
        if choice.on_hosts and self.link.hosts is not None:
            senders = world // self.link.size
            signal = max(0.0, world * mean - own) / (world - 1)
            own = signal + (own - signal) / self.link.size
        return Coded(probed.omega, own, senders, choice.twice(senders) and not self.scatters)


def _rounds(sent: float, each: GatheredWeights) -> list[Round]:
    """The rounds of gathers in which a rank sends so many bytes in all: each goes around a ring, as a sum does."""
    calls = max(1, round(each.calls))
    return [Round("all_reduce", sent / calls, sent / calls)] * calls if sent else []


def _numel(params: Sequence[Named]) -> int:
    return sum(math.prod(shape) for _, shape in params)
