"""Optimizer of hundreds of local steps, then one compressed outer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from gradwire.engine.checkpoint import OnResize
from gradwire.errors import ConfigError, Verbatim, is_int, is_number, require
from gradwire.memory.residual import Residual
from gradwire.modes import ordinary_modes
from gradwire.optim._flat import FlatParameters
from gradwire.optim.exchanged import named
from gradwire.optim.local._fragments import Deal, Fragment, Fragments, deal
from gradwire.optim.local._islands import THREAD
from gradwire.optim.local._rounds import Rounds
from gradwire.optim.local._streamed_rounds import StreamedRounds
from gradwire.optim.local.local_steps import LocalSteps, Weigh
from gradwire.optim.local.meeting import Meeting
from gradwire.transport.worker import Worker

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["DiLoCo"]


class DiLoCo(LocalSteps):
    """Train alone for ``every`` steps, exchange the change as a pseudo-gradient, and take a Nesterov step with it.

    d = exchange(agreed - p_i);  v = momentum v + d;  agreed = agreed - lr (d + momentum v);  p_i = agreed

    The outer step is ``torch.optim.SGD(lr, momentum, nesterov=True)``. A pseudo-gradient is far less noisy than a
    gradient, so few bits are enough; below 8 bits keep a residual (``memory="residual"``), which is in units of the
    parameters and does not depend on a learning rate. All ranks must call ``step`` equally often; after every
    exchange their parameters are bit-identical (``optimizer.in_step``). Buffers such as those of batch normalisation
    stay each rank's own.

    A step whose local gradient is not finite is left out on its rank, and counts. If a rank's pseudo-gradient is not
    finite the round is dropped: all go on from where they last met, with outer momentum and residuals as they were.

    Streaming: with ``fragments`` or ``delay`` the layers are dealt to fragments, each of which is exchanged once in
    ``every`` steps, at an offset of its own, on a thread while the rank makes ``delay`` steps more. What a rank waits
    for then is only what has not arrived when it is due: ``metrics()["waited_seconds"]``. A fragment is merged by

        p_i = agreed + (p_i - sent_i)  or  p_i = mix p_i + (1 - mix) agreed

    with the new ``agreed``: the first keeps what was trained meanwhile, which goes with the fragment's next exchange,
    so that everything goes exactly once; the second is the authors'. A fragment that is dropped, because one was not
    finite, is not lost either: ranks whose own was finite keep it, and send it the next time. ``agreed`` has the same
    bits on all ranks: measure and save the model inside ``with optimizer.agreed_parameters():``. ``synchronize()``
    brings the ranks' own parameters together, by an exchange more of each fragment that was trained since its last.

    Args:
        inner: the local optimizer, usually ``torch.optim.AdamW``, over all that is exchanged; 16 or 32 bits. Rank 0's
            parameters are sent to the others. Give it ``model.named_parameters()`` where options name parameters.
        compressor: compressor of the pseudo-gradient, by name or as an object. None: "qsgd", which takes 4 bits an
            element, with a residual.
        every: local steps in a round, >= 1; 30 to 1000 are usual. More: fewer bytes, and ranks drift further apart.
        lr: learning rate of the outer step, > 0.
        momentum: momentum of the outer step, in [0, 1).
        fragments: number of fragments to which the layers are dealt; embeddings and the head are one fragment more
            each. More: less is sent at a time. At most ``every`` in all. 1: the whole model. None: the whole model, in
            the step that ends the round; with ``delay`` or ``mix`` the same as 1.
        layout: "strided" gives every fragment layers of all depths, "contiguous" neighbours.
        delay: inner steps for which an exchange is under way, 0 to ``every``. More: a slower network is hidden, with an
            older mean, and 8 bytes for each element under way.
        mix: share of a rank's own parameters when a fragment is merged, in [0, 1); None: by what was trained meanwhile.
        process_group: the ranks; None is the default group.
        meeting: meeting of workers that come and go, in place of a group: see ``gradwire.local_sgd``.
        islands: mesh of one dimension over the ranks that hold the same shard, one in each island, such as
            ``mesh["islands"]``, or their group; where each worker is several ranks, over which ``fully_shard`` has
            sharded the model, with replicas or without. Each rank exchanges its own shard. None with a meeting, where
            the ranks of a model of ``fully_shard`` are one worker.
        offload: keep the parameters of the last round and the outer momentum, 8 bytes an element, in the host's memory.
        weigh: weight of each worker's change in the mean of a meeting. "workers": all count alike. "steps": the inner
            steps that are in it, so a worker that was slow, or late, counts by what it has done. "tokens": the tokens
            of those steps, which ``add_tokens(number)`` says before each ``step()``.
        options: further arguments, as for ``compress_ddp``. ``start_after`` and ``schedule`` count exchanges, of which
            there is one for each fragment.

    Raises:
        ConfigError: a parameter is outside its range.
        GroupError: ranks were given different parameters.

    Example:
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> model = torch.nn.Linear(64, 64)
        >>> inner = torch.optim.AdamW(model.named_parameters(), lr=1e-3)
        >>> optimizer = DiLoCo(inner, "qsgd", bits=4, every=2)
        >>> for _ in range(4):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(2, 64)).sum().backward()
        ...     optimizer.step()
        >>> optimizer.metrics()["steps"], optimizer.metrics()["rounds"]
        (4, 2)
        >>> dist.destroy_process_group()

    Source:
        A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv:2311.08105,
        2023; for fragments, delay and mixing, A. Douillard et al., "Streaming DiLoCo with overlapping communication:
        Towards a Distributed Free Lunch", arXiv:2501.18512, 2025; for the merge that keeps what was trained meanwhile,
        Y. Maziane, A. Mahran, A. Maranjyan, P. Richtárik, "LOSCAR-SGD: Local SGD with Communication-Computation Overlap
        and Delay-Corrected Sparse Model Averaging", arXiv:2605.20866, 2026.
    """

    ranges: ClassVar = {
        **LocalSteps.ranges,
        "lr": (lambda value: is_number(value) and 0 < value < math.inf, "a finite number > 0"),
        "momentum": (lambda value: is_number(value) and 0 <= value < 1, "in [0, 1)"),
        "fragments": (lambda value: value is None or is_int(value, 1), "an integer >= 1 or None"),
        "layout": (lambda value: value in ("strided", "contiguous"), "'strided' or 'contiguous'"),
        "delay": (lambda value: is_int(value, 0), "an integer >= 0"),
        "mix": (lambda value: value is None or (is_number(value) and 0 <= value < 1), "in [0, 1) or None"),
    }

    @ordinary_modes()
    def __init__(
        self,
        inner: Optimizer,
        compressor: Any = None,
        *,
        every: int = 500,
        lr: float = 0.7,
        momentum: float = 0.9,
        fragments: int | None = None,
        layout: Deal = "strided",
        delay: int = 0,
        mix: float | None = None,
        process_group: dist.ProcessGroup | None = None,
        meeting: Meeting | None = None,
        islands: DeviceMesh | dist.ProcessGroup | None = None,
        offload: bool = False,
        weigh: Weigh = "workers",
        **options: Any,
    ) -> None:
        if compressor is None:
            compressor, options = "qsgd", {"memory": "residual", **options}
        streams = fragments is not None or delay != 0 or mix is not None
        self._dealt = list[list[int]]()

        def check() -> None:
            self.check_parameters({"fragments": fragments, "layout": layout, "delay": delay, "mix": mix})
            require(meeting is None or mix is None, "DiLoCo.mix", "None with a meeting", mix)
            require(delay <= every, "DiLoCo.delay", f"at most every, which is {every}", delay)
            if streams:
                self._dealt = deal(list(named(inner.param_groups)), fragments or 1, layout)
                most = f"so few that there are at most {every}, the steps of a period, with embeddings and head"
                require(len(self._dealt) <= every, "DiLoCo.fragments", most, len(self._dealt))
                gap = every // len(self._dealt)
                one = f"at most {gap}, the steps between two fragments, of which one is under way at a meeting"
                require(meeting is None or delay <= gap, "DiLoCo.delay", one, delay)

        facts: dict[str, Any] = {"lr": lr, "momentum": momentum}
        if streams:
            facts |= {"fragments": fragments, "layout": layout, "delay": delay, "mix": mix}
        shared = (inner, compressor, every, options, process_group, meeting, facts, check)
        super().__init__(*shared, islands, offload, threads=2 if streams and meeting is None else 1, weigh=weigh)
        self.lr, self.momentum, self.mix = lr, momentum, mix
        self.velocity = FlatParameters(self.params, offload)
        sizes = [len(numbers) for numbers in self._dealt]
        thread = Worker if meeting is None else meeting.thread
        self.streams = Fragments(self.delta.views, sizes, every, delay, thread) if streams else None
        self.exchange.expect_apart(max(1, len(sizes)))
        self.streamed: StreamedRounds | None = None
        if self.streams is not None and meeting is not None:
            frozen, put = list(self.frozen.values()), self._put
            self.rounds = self.streamed = StreamedRounds(
                *(self.exchange, self.named, meeting, self.facts, frozen),
                *(self.streams, self._gather_deltas, put, self.delta.data, self.crew),
                weighs=weigh != "workers",
            )

    @classmethod
    def sparse_loco(
        cls, inner: Optimizer, *, every: int = 30, lr: float = 1.0, decay: float = 0.95, **options: Any
    ) -> DiLoCo:
        """Exchange 1.6 % of the changes in 2 bits each, with a residual that fades and no outer momentum.

        e_i = decay e_i + agreed - p_i;  e_i = e_i - C(e_i);  agreed = agreed - lr aggregate_i C(e_i);  p_i = agreed

        C is ``sparseloco``: the 64 largest of 4096 elements, 0.147 bit an element and round. Norms are clipped to their
        median, as the authors' code does; what a residual forgets, a twentieth of it in each round, is lost.

        Args:
            inner: the local optimizer, usually ``torch.optim.AdamW``.
            every: local steps in a round, >= 1.
            lr: learning rate of the outer step, > 0.
            decay: share of the residual that returns in the next round, in (0, 1].
            options: further arguments of ``DiLoCo``, such as ``fragments`` and ``delay``, and of the compressor, such
                as ``aggregate="senders"``, which divides by the ranks that sent an element, or ``clip=False``, which a
                meeting needs.

        Returns:
            The optimizer.

        Raises:
            ConfigError: a parameter is outside its range.

        Example:
            >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
            >>> model = torch.nn.Linear(64, 64)
            >>> optimizer = DiLoCo.sparse_loco(torch.optim.AdamW(model.named_parameters()), every=10)
            >>> optimizer.every, optimizer.momentum
            (10, 0.0)
            >>> dist.destroy_process_group()

        Source:
            A. Sarfi, B. Thérien, J. Lidin, E. Belilovsky, "Communication Efficient LLM Pre-training with
            SparseLoCo", arXiv:2508.15706, 2025.
        """
        own = {"momentum": 0.0, "clip": True, "places": "combinations", "memory": Residual(beta=decay)}
        given = {**own, **options}
        # The norms of those that sent something are known where all payloads are, and at a meeting they are not.
        alone = options.get("meeting") is None or given["clip"] is False
        require(alone, "clip", "False with a meeting", given["clip"])
        return cls(inner, "sparseloco", every=every, lr=lr, **given)

    @classmethod
    def muloco(
        cls,
        inner: Optimizer,
        *,
        every: int = 30,
        lr: float = 0.8,
        momentum: float = 0.8,
        bits: float | None = None,
        decay: float | None = None,
        **options: Any,
    ) -> DiLoCo:
        """Exchange what Muon has changed, in float32 or in a few bits with a residual that fades.

        e_i = decay e_i + agreed - p_i;  e_i = e_i - C(e_i);  d = mean_i C(e_i);  then the outer step of ``DiLoCo``

        C is ``eden`` with a contraction. The authors' code has four means for all of a tensor, and applies the outer
        rate twice, before C as well; here it is applied once. The residual is one of the changes, in units of the
        parameters. A residual of gradients makes no sense under Muon, and one without ``bits`` has nothing to keep.

        Args:
            inner: the local optimizer, usually ``gradwire.optim.MuonAdamW``.
            every: local steps in a round, >= 1.
            lr: learning rate of the outer step, > 0: 0.7 for one worker, 0.8 to 0.9 for 8 to 16.
            momentum: momentum of the outer step, in [0, 1): 0.6 for one worker, 0.8 to 0.9 for 8 to 16.
            bits: bits for each element, as of ``eden``; None: 32.
            decay: share of the residual that returns in the next round, in (0, 1]; None: 0.9 with ``bits``.
            options: further arguments of ``DiLoCo``, such as ``fragments`` and ``delay``.

        Returns:
            The optimizer.

        Raises:
            ConfigError: a parameter is outside its range, or a memory without ``bits``.

        Example:
            >>> from gradwire.optim import MuonAdamW
            >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
            >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64))
            >>> optimizer = DiLoCo.muloco(MuonAdamW(model.named_parameters()), bits=2)
            >>> optimizer.every, optimizer.lr
            (30, 0.8)
            >>> dist.destroy_process_group()

        Source:
            B. Thérien, X. Huang, I. Rish, E. Belilovsky, "MuLoCo: Muon is a practical inner optimizer for DiLoCo",
            arXiv:2505.23725, 2025.
        """
        require(bits is not None or decay is None, "decay", "left out without bits, where nothing is kept", decay)
        if bits is None:
            require("memory" not in options, "memory", "left out without bits, where nothing is kept", Verbatim("one"))
            return cls(inner, "none", every=every, lr=lr, momentum=momentum, **options)
        own = {"bits": bits, "scaled": True, "memory": Residual(beta=0.9 if decay is None else decay)}
        return cls(inner, "eden", every=every, lr=lr, momentum=momentum, **{**own, **options})

    @property
    def fragments(self) -> list[list[str]]:
        """The names of the parameters in each fragment, in the order in which these are exchanged."""
        names = [name for name, _ in self.named]
        return [names] if self.streams is None else [names[each.numbers] for each in self.streams]

    @property
    def round(self) -> int:
        """The number of rounds that all have made together; in each of them every fragment was exchanged."""
        if self.streams is None:
            return super().round
        # At a meeting the others have sent what this worker has missed.
        return (self.streams.sent if self.streamed is None else self.exchange.step) // len(self.streams.all)

    def kept(self) -> dict[str, FlatParameters]:
        return {"agreed": self.agreed, "velocity": self.velocity}

    @torch.no_grad()
    def outer(self, mean: Tensor) -> None:
        """Take Nesterov's step."""
        self._outer(mean, slice(None))

    def _outer(self, mean: Tensor, span: slice) -> None:
        """Take Nesterov's step with a part of the elements."""
        velocity, mean = self.velocity.data[span], mean.to(self.velocity.data.device)
        velocity.mul_(self.momentum).add_(mean)
        mean.add_(velocity, alpha=self.momentum)
        self.agreed.data[span].add_(mean, alpha=-self.lr)

    def metrics(self) -> dict[str, Any]:
        """Return the figures of every optimizer with local steps.

        With fragments it waits for those under way, and tells of the "waited_seconds" of training for exchanges that
        were due, and of the "exchanges" of single fragments.
        """
        if self.streams is None:
            return super().metrics()
        if self.streamed is None:
            self.streams.rest()
        told = super().metrics()
        own = {"rounds": self.round, "exchanges": self.exchange.step, "waited_seconds": self.streams.waited}
        return {**told, **own}

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state and the tensors kept on this rank: each rank saves its own.

        Fragments under way are waited for, and saved as they are; training goes on as if nothing had been saved.
        """
        if self.streams is None:
            return super().state_dict()
        self._hurry()
        self.streams.settle()
        sent = {} if self.streamed is None else {"sent": self.streamed.sent}
        return {**super().state_dict(), **sent, "streams": self.streams.state_dict([name for name, _ in self.named])}

    def load_state_dict(self, state_dict: Mapping[str, Any], on_resize: OnResize = "error") -> None:
        """Continue bit for bit from a ``state_dict`` of this rank, as every optimizer with local steps does.

        Save after ``synchronize()`` for another number of ranks or other fragments.

        Raises:
            ConfigError: the state is of another optimizer, of another number of ranks, or has other fragments under
                way.
        """
        if self.streams is not None:
            self._hurry()
            self.streams.rest()
        super().load_state_dict(state_dict, on_resize)
        if self.streams is not None:
            names = [name for name, _ in self.named]
            self.streams.load(state_dict.get("streams", {}), names, self.since, self.exchange.step)
        if self.streamed is not None:
            self.streamed.sent = bool(state_dict.get("sent"))

    def check_state(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse a state with other fragments under way, or of another shard."""
        super().check_state(state_dict)
        saved = state_dict.get("streams", {})
        if self.streams is not None:
            self.streams.check(saved, [name for name, _ in self.named])
        elif saved.get("flights"):
            raise ConfigError(
                "state_dict must be saved after synchronize() for one without fragments, got one with some under way"
            )

    def _arrange(self) -> None:
        order = [number for numbers in self._dealt for number in numbers]
        if order:
            self.params, self.named = [self.params[i] for i in order], [self.named[i] for i in order]
            self.trained = [self.trained[i] for i in order]

    def _exchange_due(self) -> None:
        if self.streams is None:
            super()._exchange_due()
            return
        if self.streamed is not None:
            self._exchange_at_meeting(self.streamed, self.streams)
            return
        arriving, leaving = self.streams.tick()
        for fragment in arriving:
            self._land(fragment, self.mix)
        for fragment in leaving:
            self._send(fragment)
        if not self.streams.delay:
            for fragment in leaving:
                self._meet_in(fragment, self.mix)

    def _end_round(self) -> None:
        if self.streams is None:
            super()._end_round()
            return
        if self.streamed is not None:
            self._end_at_meeting(self.streamed, self.streams)
            return
        for fragment in self.streams.under_way():
            self._land(fragment, self.mix)
        # One in which all have just met has no change, and would take a step of the outer momentum alone.
        apart = [fragment for fragment in self.streams if fragment.place not in self.streams.met]
        for fragment in apart:
            self._send(fragment)
        for fragment in apart:
            self._meet_in(fragment, None)
        self.streams.clock = 0

    def _join(self, rounds: Rounds) -> None:
        if self.streamed is None or self.streams is None:
            super()._join(rounds)
            return
        flights = [(each, self.streams.arrived(each)) for each in self.streams.under_way()]
        self._apply(self.streamed, self.streamed.come(self.kept(), flights[0] if flights else None))

    def _position(self) -> dict[str, Any]:
        position = super()._position()
        if self.streamed is not None and self.streams is not None:
            under_way = [fragment.place for fragment in self.streams.under_way()]
            position |= {"clock": self.streams.clock, "under way": under_way, "sent": self.streamed.sent}
        return position

    @torch.no_grad()
    def leave(self) -> None:
        """Tell the others not to wait for this worker any more, once the fragment that is under way was applied."""
        self._locate()
        if self.streamed is not None and self.streams is not None and self.streams.under_way():
            self._land_at_meeting(self.streamed, self.streams)
        super().leave()

    def _exchange_at_meeting(self, rounds: StreamedRounds, streams: Fragments) -> None:
        due, ready = streams.turn()
        if due:
            self._land_at_meeting(rounds, streams)
        if ready and not streams.under_way():
            self._apply(rounds, rounds.catch_up(self.kept()))
            if streams.wants(rounds.fragment(self.exchange.step + 1)):
                self._send_at_meeting(rounds, streams)
                if not streams.delay:
                    self._land_at_meeting(rounds, streams)

    def _end_at_meeting(self, rounds: StreamedRounds, streams: Fragments) -> None:
        if streams.under_way():
            self._land_at_meeting(rounds, streams)
        met = set[int]()
        for _ in streams:
            self._apply(rounds, rounds.catch_up(self.kept()))
            fragment = self._send_at_meeting(rounds, streams)
            self._land_at_meeting(rounds, streams)
            met |= {fragment.place} if rounds.sent else set()
        if len(met) == len(streams.all):
            self.since = 0
        streams.clock = 0

    def _send_at_meeting(self, rounds: StreamedRounds, streams: Fragments) -> Fragment:
        t = self.exchange.step + 1
        fragment = rounds.fragment(t)
        rounds.there.due.clear()
        self._gather_deltas(fragment)
        spoilt = self._note_nonfinite(self.delta.data[fragment.span])
        rounds.depart(fragment)
        streams.send(fragment, partial(rounds.run, t), self.delta.data[fragment.span], spoilt)
        return fragment

    def _land_at_meeting(self, rounds: StreamedRounds, streams: Fragments) -> None:
        self._hurry()
        fragment = streams.under_way()[0]
        self._apply(rounds, rounds.land(fragment, streams.arrived(fragment), self.kept()))

    def _hurry(self) -> None:
        """Let a round that has its quorum close now."""
        if self.streamed is not None and self.streamed.attendance is not None:
            self.streamed.attendance.due.set()

    def _apply(self, rounds: StreamedRounds, means: Iterator[Tensor]) -> None:
        """Apply rounds that are over; this worker's parameters follow, with all of its change that was not sent."""
        for mean in means:
            fragment = rounds.fragment(self.exchange.step + 1)
            rounds.unsent(fragment)
            if self._is_finite(mean):
                self._outer(mean, fragment.span)
            self._put(fragment)

    def _put(self, fragment: Fragment) -> None:
        for number in range(fragment.numbers.start, fragment.numbers.stop):
            param = self.params[number]
            param.copy_(self.agreed.views[number].to(param.device) - self.delta.views[number])

    def _meet_in(self, fragment: Fragment, mix: float | None) -> None:
        """Apply the exchange of a fragment in which nothing was trained meanwhile; all ranks are in step if they have
        just met in every fragment.
        """
        assert self.streams is not None
        if self._land(fragment, mix):
            self.streams.met.add(fragment.place)
        if len(self.streams.met) == len(self.streams.all):
            self.since = 0

    def _send(self, fragment: Fragment) -> None:
        """Start the exchange of the change of a fragment; the other ranks hear of it if there is none to be had."""
        assert self.streams is not None
        failed = list[Exception]()
        try:
            self._gather_deltas(fragment)
        except Exception as error:
            failed.append(error)
        delta = self.delta.data[fragment.span]
        spoilt = self._note_nonfinite(delta, bool(failed))
        # The clock goes on while the thread exchanges.
        job = partial(self._exchange_fragment, fragment, failed, self.streams.clock)
        self.streams.send(fragment, job, delta, spoilt)

    def _exchange_fragment(self, fragment: Fragment, failed: list[Exception], clock: int, flat: Tensor) -> bool:
        """Exchange a fragment, on the thread."""

        def check() -> None:
            if failed:
                raise failed[0]

        params = self.named[fragment.numbers]

        def exchange(everywhere: Callable[[bool], bool]) -> bool:
            self._compare_steps(clock)
            self.exchange.begin_step()
            self.exchange.open(check, [name for name, _ in params])
            return self.exchanged(flat, params, everywhere)

        return self._on_all_shards(exchange, THREAD)

    def _land(self, fragment: Fragment, mix: float | None) -> bool:
        """Apply the exchange of a fragment that is due; return whether the ranks have the same parameters in it, if
        nothing was trained meanwhile.

        A fragment that was dropped waits in the parameters of the ranks whose delta was finite.
        """
        assert self.streams is not None
        flight = self.streams.arrived(fragment)
        self._gather_deltas(fragment)
        trained = self.delta.data[fragment.span].sub_(flight.own.data)
        spoilt, mean = flight.spoilt, flight.land()
        if mean is not None:
            self._outer(mean, fragment.span)
        elif not spoilt:
            return False
        else:
            trained.zero_()
        if mix and mean is not None:
            for param, agreed in zip(self.params[fragment.numbers], self.agreed.views[fragment.numbers], strict=True):
                param.copy_(torch.lerp(agreed.to(param.device), param.float(), mix))
        else:
            if mix is not None:
                trained.zero_()
            self._put(fragment)
        return mean is not None and not mix

    def _gather_deltas(self, fragment: Fragment) -> None:
        for number in range(fragment.numbers.start, fragment.numbers.stop):
            self._delta_of(number)
