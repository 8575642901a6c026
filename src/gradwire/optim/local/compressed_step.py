"""Compression of the step of a local optimizer, with residuals in units of the parameters.

``agreed`` has the same bits on all ranks. In round t the pseudo-gradient of rank i is w_i(t), and the mean is

    x_i(t) = m_i(t-1) + w_i(t);  m_i(t) = x_i(t) - C(x_i(t));  M(t) = mean_i C(x_i(t))

Without ``late``, M(t) is applied at the end of round t, and p_i = agreed is where round t + 1 begins. With it, round t
is exchanged while the ranks make the steps of round t + 1, and at the end of that round

    agreed = agreed - M(t);  p_i = p_i + w_i(t) - M(t) = agreed - w_i(t+1)

Invariants:
    * A rank's parameters are always agreed - (its pseudo-gradient under way) - (that of this round). As soon as nothing
      is under way and no step was made since, p_i = agreed.
    * What was applied everywhere is what all ranks have moved, but for the residuals: sum_t M(t) = mean_i (sum_t w_i(t)
      - m_i).
    * With ``keep`` round t + 1 begins at p_i = agreed - m_i(t): a rank trains with what it has not sent yet. That stays
      in its residual as before, and is no part of its next pseudo-gradient. Nothing stays there longer than ``reset``
      steps: for a part R(t) of the elements, which goes round, the mean of m_i is applied, too, uncompressed, and m_i
      becomes 0; in ``finish`` for all of them.
    * Decoupled weight decay is no part of the pseudo-gradient: agreed shrinks by it, and p_i with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from gradwire.compressors.sparse.topk import TopK
from gradwire.engine.adaptive import is_adaptive, is_adaptive_class, mostly_zero, warn_of_sparse_steps
from gradwire.engine.checkpoint import OnResize
from gradwire.errors import ConfigError, Verbatim, is_int, require
from gradwire.frontends.ownership import release
from gradwire.frontends.setup import is_auto
from gradwire.memory import facts
from gradwire.memory.base import Memory
from gradwire.modes import ordinary_modes
from gradwire.optim._flat import spans_of
from gradwire.optim.exchanged import FLAG
from gradwire.optim.local._flight import Flight
from gradwire.optim.local._local_noise import LocalNoise
from gradwire.optim.local._moments import AveragedMoments, keeps_moments, kinds_of
from gradwire.optim.local.local_steps import LocalSteps
from gradwire.optim.local.meeting import Meeting
from gradwire.transport.handshake import agree

__all__ = ["CompressedStep"]

Decay = Literal["outer", "inner"]


class CompressedStep(LocalSteps):
    """Let a local optimizer make its step, exchange the step compressed, and continue from the mean.

    x_i = m_i + agreed - p_i;  m_i = x_i - C(x_i);  agreed = agreed - mean C(x_i);  p_i = agreed

    m_i is 0 with a method that keeps no residual. For Adam and few bytes. Error feedback into the gradient is ruinous
    there, because Adam divides what arrives late by a second moment that knew nothing of it; a step is in units of the
    parameters, it is only added, and its residual loses nothing. For the same reason the noise of an unbiased
    method needs no correction: no second moment counts it. An eighth of a bit an element, exchanged in every fifth
    step, cost a GPT less than any sparse method did at ten times its bytes (docs/transformer.md). Each rank has an
    inner optimizer of its own, with the moments of its own gradients. With error feedback, one step a round and
    ``strategy="two_phase"``, whose second message has a memory too, this is Efficient-Adam; with more steps,
    Qsparse-local-SGD over Adam. What ``QsparseLocal`` says of rounds and ``DiLoCo`` of step counts, buffers and values
    that are not finite holds here too.

    Clipping: ``clip_grad_norm_`` before ``step`` acts on this rank's own gradient, whose norm is larger than that of a
    mean over ranks; every rank clips by its own.

    Args:
        inner: the local optimizer, over all that is exchanged; 16 or 32 bits. Rank 0's parameters are sent to the
            others. Give it ``model.named_parameters()`` where options name parameters.
        compressor: compressor of the step, by name or as an object; with the memory that it declares, or ``memory=``.
            None: "eden", which is unbiased and takes 1 bit an element, or fewer as with ``bits=0.125``; with ``keep``,
            which needs a residual, "topk", which sends 1 % of the elements. "auto" watches uncompressed rounds, tries
            methods on the steps, and takes the one that makes a round shortest within ``budget``, as for gradients;
            "small" may take what keeps a part of the steps back, whatever the inner optimizer divides by. Not with
            ``late``, whose rounds nobody waits for, nor with a meeting.
        every: local steps in a round, >= 1. More: fewer bytes, and ranks drift further apart.
        decay: "outer" takes the weight decay of the parameter groups out of the inner step, and shrinks the agreed
            parameters by 1 - lr weight_decay in every step, exactly, on all ranks and without sending a byte; rates
            and decays must then be the same on all ranks, which is compared in every round. It is meant for decoupled
            decay alone, and reaches parameters without a gradient too. "inner" leaves the decay in the step: it is the
            same small value on all ranks for every element, which a sparse code sends late and in pieces. None:
            "outer" for optimizers of torch with decoupled decay, such as ``AdamW``, without a meeting, and "inner" for
            everything else.
        moments: "apart": each rank keeps the second moments of its own gradients. An integer K >= 1: after every K
            rounds ``exp_avg_sq`` (and ``max_exp_avg_sq``) become their mean over the ranks that have them. It travels
            in float32: 8 (W - 1) / W bytes an element, which ``metrics()`` counts; lower K, more bytes.
        keep: a rank goes on from its own parameters, agreed - m_i, as in CSER, and not from the agreed ones: what it
            has not sent yet is missing from the others' parameters, and not from its own. That is markedly better. The
            ranks are in step after ``finish()`` at the end of a round, which averages the residuals, uncompressed: call
            it before parameters are measured or saved; within a round call ``synchronize()`` first.
        reset: number of steps, with ``keep``, in which each element of the residuals is averaged uncompressed once, a
            part of them in every round, >= 1. It costs 8 (W - 1) / W bytes an element in so many steps. Fewer: ranks
            stay closer together, for more bytes. None: only in ``finish()``; until then ranks may drift apart without
            bound.
        late: exchange a round beside the steps of the next one, on a thread, and apply it one round late: the network
            is hidden, for 8 bytes more an element and a mean that is a round old. ``synchronize()`` brings all in
            step, and ``finish()`` applies what is under way.
        variance_correction: multiply local steps by what the noise of this rank's own gradients makes the mean step too
            short, for each parameter group: with one step a round the mean is then about as long as a step of one AdamW
            on the mean gradient, whose learning rate can be kept. It is measured on a sample, which is averaged without
            compression in some rounds. It needs an inner optimizer that divides by a mean of squares; not with a
            meeting. With ``decay="inner"`` the decay is multiplied, too. Give False where ``eps`` is far larger than
            the root of the second moments: such steps are linear in the gradient. None: wherever it can be, with an
            optimizer of torch or derived from one, but for ``RAdam``.
        process_group: the ranks; None is the default group.
        meeting: meeting of workers that come and go, in place of a group; with the decay inside, moments apart and
            nothing late.
        options: further arguments, as for ``compress_ddp``.

    Raises:
        ConfigError: a parameter is outside its range, or ``decay="outer"`` for an optimizer that adds the decay to the
            gradient.
        GroupError: ranks were given different parameters.

    Example:
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> model = torch.nn.Linear(64, 64)
        >>> optimizer = CompressedStep(torch.optim.AdamW(model.named_parameters(), lr=1e-3))
        >>> for _ in range(2):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(2, 64)).sum().backward()
        ...     optimizer.step()
        >>> optimizer.decay, optimizer.metrics()["steps"]
        ('outer', 2)
        >>> dist.destroy_process_group()

    Source:
        C. Chen, L. Shen, H. Huang, W. Liu, "Quantized Adam with Error Feedback", ACM Transactions on Intelligent
        Systems and Technology, 2021; C. Chen, L. Shen, W. Liu, Z.-Q. Luo, "Efficient-Adam: Communication-Efficient
        Distributed Adam", arXiv:2205.14473, 2022; for several steps, D. Basu, D. Data, C. Karakus, S. Diggavi,
        "Qsparse-local-SGD", NeurIPS 2019; for ``keep``, C. Xie, S. Zheng, O. Koyejo, I. Gupta, M. Li, H. Lin, "CSER:
        Communication-efficient SGD with Error Reset", NeurIPS 2020.
    """

    ranges: ClassVar = {
        **LocalSteps.ranges,
        "decay": (lambda value: value in ("outer", "inner", None), "'outer', 'inner' or None"),
        "moments": (lambda value: value == "apart" or is_int(value, 1), "'apart' or an integer >= 1"),
        "late": FLAG,
        "keep": FLAG,
        "reset": (lambda value: value is None or is_int(value, 1), "an integer >= 1 or None"),
        "variance_correction": (lambda value: value is None or isinstance(value, bool), "True, False or None"),
    }
    steered: ClassVar[bool] = True

    @ordinary_modes()
    def __init__(
        self,
        inner: Optimizer,
        compressor: Any = None,
        *,
        every: int = 1,
        decay: Decay | None = None,
        moments: int | Literal["apart"] = "apart",
        keep: bool = False,
        reset: int | None = 200,
        late: bool = False,
        variance_correction: bool | None = None,
        process_group: dist.ProcessGroup | None = None,
        meeting: Meeting | None = None,
        **options: Any,
    ) -> None:
        require(isinstance(inner, Optimizer), "CompressedStep.inner", "a torch.optim.Optimizer", inner)
        if compressor is None:
            compressor = "topk" if keep else "eden"
        chosen = decay if decay is not None else "outer" if decoupled(inner) and meeting is None else "inner"

        def check() -> None:
            own = {"decay": decay, "moments": moments, "keep": keep, "late": late, "reset": reset}
            self.check_parameters({**own, "variance_correction": variance_correction})
            alone = meeting is None
            require(alone or moments == "apart", "CompressedStep.moments", "'apart' with a meeting", moments)
            require(alone or not late, "CompressedStep.late", "False with a meeting", late)
            require(alone or not keep, "CompressedStep.keep", "False with a meeting", keep)
            steers = is_auto(compressor)
            require(alone or not steers, "CompressedStep.compressor", "a method with a meeting", compressor)
            # Whoever waits for no exchange has nothing to measure.
            require(not (late and steers), "CompressedStep.late", "False with 'auto'", late)
            require(alone or chosen == "inner", "CompressedStep.decay", "'inner' with a meeting", decay)
            got = Verbatim(f"{moments!r} with {type(inner).__name__}")
            required = "'apart' with an optimizer that keeps no exp_avg_sq"
            require(moments == "apart" or keeps_moments(inner), "CompressedStep.moments", required, got)
            if chosen == "outer":
                check_outer(inner)
            if variance_correction:
                require(alone, "CompressedStep.variance_correction", "False or None with a meeting", True)
                check_correction(inner)

        corrects = shortened_by_noise(inner) and meeting is None if variance_correction is None else variance_correction
        facts: dict[str, Any] = {"decay": chosen, "moments": moments, "keep": keep, "late": late}
        facts |= facts_of_correction(inner, variance_correction, corrects)
        if keep:
            facts["reset"] = reset
        if moments != "apart":
            facts["kinds"] = kinds_of(inner)
        super().__init__(inner, compressor, every, options, process_group, meeting, facts, check)
        controller = self.exchange.controller
        if controller is not None:
            # The residual of a step is added when it arrives, and divided by nothing.
            controller.follow_optimizers(lambda: True)
        # That of whatever is decided for is a residual.
        memory = self.exchange.methods.memory_for(self.exchange.methods.compressor if controller is None else TopK())
        if keep:
            self._check_kept(memory)
        self.decay: Decay = chosen
        self.moments = moments
        self._moments = None if moments == "apart" else AveragedMoments(self.params)
        self._flight = Flight(self.params) if late else None
        self.keep, self.reset, self._apart = keep, reset, False
        spans = spans_of(self.param_groups, self.params)
        self._members = [numbers for _, numbers in spans]
        self._shrunk_by = [1.0] * len(self._members)
        self._looked = False
        groups = [span for span, _ in spans]
        self._noise = LocalNoise(self.exchange, groups, type(inner).__name__) if corrects else None

    def _check_kept(self, memory: Memory) -> None:
        """Refuse a memory in which there is nothing that a rank could go on with."""
        # What an autotuner decides may have a residual, too.
        waits = self.exchange.controller is not None or "residual" in self.exchange.methods.buffers("buffers")
        if not waits:
            why = "where nothing waits"
        elif facts.residual_is_momentum(memory):
            why = "whose residual is a momentum"
        elif memory.form.block:
            why = "whose residual is stored in codes"
        else:
            return
        # The optimizer is never made, and its exchange must not own the parameters.
        release(self.exchange)
        raise ConfigError(f"CompressedStep.keep must be False with memory {memory.name!r}, {why}, got True")

    @property
    def in_step(self) -> bool:
        """Return whether all ranks hold the same parameters now."""
        return self.since == 0 and not self._late and not self._apart

    @property
    def round(self) -> int:
        """The number of rounds that all have made together; it waits for the one that is under way."""
        self._wait()
        return super().round

    @torch.no_grad()
    def synchronize(self) -> None:
        """Exchange now, and apply the mean: ``step`` does this by itself. All ranks must call it; use it after the last
        step.

        With ``late`` all are in step after it, too.
        """
        self._refuse_inside("synchronize()")
        self._end_round()
        self.finish()

    @torch.no_grad()
    def finish(self) -> None:
        """Apply the round that is under way, if any, or with ``keep`` the residuals, and continue from the agreed
        parameters.

        All ranks must call it after the same step. The steps since the last round stay in this rank's parameters. Call
        it before parameters are changed by hand.
        """
        if self._late or self._apart:
            # It is on another thread, and two must not talk on one channel.
            self._wait()
            channel, place = self.exchange.channel, {"step": self.exchange.step, "since": self.since}
            # What follows is as large as the model, and must not meet a message of a rank that goes on with a step.
            agree(channel, f"{type(self).__name__}.finish", lambda: json.dumps(place), self.exchange.device)
            # Before ``agreed`` moves, because the pseudo-gradient is the distance from it.
            self._gather_delta()
            if self._apart:
                self._reset(0, self.agreed.data.numel())
            self._apart = False
            if self._late:
                self._land()
            for number, param in enumerate(self.params):
                param.copy_(self._start(number) - self.delta.views[number])

    @classmethod
    def check_parameters(cls, given: Mapping[str, object]) -> None:
        super().check_parameters(given)
        apart, words = not (given.get("keep") and given.get("late")), "False with late, where a whole round is kept"
        require(apart, "CompressedStep.keep", words, given.get("keep"))

    def metrics(self) -> dict[str, Any]:
        """Return the figures of every optimizer of this kind; it waits for the round that is under way.

        With a correction "step_factors" are the numbers by which local steps are multiplied, one for each group.
        """
        self._wait()
        factors = {} if self._noise is None else {"step_factors": self._noise.factors}
        return {**super().metrics(), **factors}

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state and the tensors kept on this rank: each rank saves its own.

        A round that is under way is waited for, and saved as it is; training goes on as if nothing had been saved.
        """
        # A round under way changes the residuals that are saved.
        self._wait()
        state = super().state_dict()
        if self._flight is not None:
            state["flight"] = self._flight.state_dict([name for name, _ in self.named])
        if self._noise is not None:
            state["noise"] = self._noise.state_dict()
        return {**state, "apart": True} if self._apart else state

    def load_state_dict(self, state_dict: Mapping[str, Any], on_resize: OnResize = "error") -> None:
        """Continue bit for bit from a ``state_dict`` of this rank, as every optimizer with local steps does.

        With ``late`` or ``keep`` save after ``synchronize()`` for another number of ranks.

        Raises:
            ConfigError: the state is of another optimizer, or of another number of ranks.
        """
        self._wait()
        flight = state_dict.get("flight", {})
        same = state_dict.get("exchange", {}).get("world") == self.exchange.channel.world
        fits = not flight or (self._flight is not None and same)
        allowed = "saved after synchronize() for another number of ranks or late=False"
        require(fits, "state_dict", allowed, Verbatim("one with a round under way"))
        apart = bool(state_dict.get("apart", False))
        in_step = "saved after finish() for another number of ranks or keep=False"
        require(not apart or (self.keep and same), "state_dict", in_step, Verbatim("one of ranks that were apart"))
        super().load_state_dict(state_dict, on_resize)
        if self._flight is not None:
            self._flight.load(flight, [name for name, _ in self.named])
        if self._noise is not None:
            self._noise.load_state_dict(state_dict.get("noise", {}))
            if not same or "noise" not in state_dict:
                # The noise in a mean depends on the number of ranks, and of this training nothing was measured yet.
                self._noise.restart()
        self._apart = apart
        self._shrunk_by = [1.0] * len(self._members)
        if self.since == 0 and not self.in_step:
            # Between two rounds the parameters of a rank follow from what the state has.
            with torch.no_grad():
                self._restart()

    @property
    def _late(self) -> bool:
        """Return whether a round is under way, or over and not applied."""
        return self._flight is not None and self._flight.open

    def _wait(self) -> None:
        if self._flight is not None:
            self._flight.wait()

    def _start(self, number: int) -> Tensor:
        if self._apart:
            # The part that this rank did not send is in its own parameters, and waits in its memory.
            return (self.agreed.views[number] - self._unsent(number)).to(self.params[number].dtype)
        if self._flight is None or not self._flight.open:
            return super()._start(number)
        # The step that is on its way is in this rank's own parameters, until the mean takes its place.
        return (self.agreed.views[number] - self._flight.own.views[number]).to(self.params[number].dtype)

    def _refresh(self) -> None:
        if not self._late and not self._apart:
            super()._refresh()

    def _unsent(self, number: int) -> Tensor:
        """The residual of a parameter on this rank; 0 if it travels uncompressed."""
        kept = self.exchange.residuals.worker.get("residual", {}).get(self.named[number][0])
        view = self.agreed.views[number]
        return torch.zeros_like(view) if kept is None else kept.view_as(view)

    def _waiting(self, lo: int, hi: int) -> Iterator[Tensor]:
        """Yield the residuals of these elements of ``agreed``, parameter by parameter, as views."""
        start = 0
        for number, view in enumerate(self.agreed.views):
            end = start + view.numel()
            if start < hi and lo < end:
                yield self._unsent(number).view(-1)[max(lo - start, 0) : hi - start]
            start = end

    def _reset_next(self, steps: int) -> None:
        """Average the next part of the residuals, so large that the given number of steps covers all of them."""
        numel = self.agreed.data.numel()
        part = min(numel, -(-numel * self.every // steps))
        lo = (self.exchange.step - 1) * part % numel
        self._reset(lo, min(lo + part, numel))
        if lo + part > numel:
            self._reset(0, lo + part - numel)

    def _reset(self, lo: int, hi: int) -> None:
        """Apply the uncompressed mean of the residuals of these elements, which are zero afterwards."""
        waiting = list(self._waiting(lo, hi))
        mean = torch.cat(waiting).float()
        spoilt = bool(self.exchange.average(mean, extra=True))
        # All ranks see the same mean, so all of them apply it and drop their residuals, or none does.
        if not spoilt:
            self.agreed.data[lo:hi].sub_(mean)
            for part in waiting:
                part.zero_()

    def _end_round(self) -> None:
        if self._flight is None:
            self._compare()
            super()._end_round()
            if self.keep and self.reset is not None:
                self._reset_next(self.reset)
            self._apart = self.keep
            if self._apart:
                self._restart()
            self._average_moments()
            self._look_for_zeros()
            return
        self._gather_delta()
        if self._late:
            # The round before must have ended: its thread uses the exchange.
            self._land()
        self._compare()
        self._begin_exchange()
        self._flight.begin(self.exchanged, self.delta.data)
        self._restart()
        self.since = 0

    def _restart(self) -> None:
        """Set the parameters to where this rank begins the next round."""
        for number, param in enumerate(self.params):
            param.copy_(self._start(number))

    def _land(self) -> None:
        assert self._flight is not None
        mean = self._flight.land()
        if mean is not None:
            self.outer(mean)
        self._average_moments()
        self._look_for_zeros()

    def _look_for_zeros(self) -> None:
        """Warn on rank 0, after the first round, if the steps of a parameter were mostly zeros."""
        exchange, looked, self._looked = self.exchange, self._looked, True
        if looked or exchange.channel.world == 1 or exchange.channel.rank != 0 or not is_adaptive(self.inner):
            return
        zeros = exchange.first_zeros.shares() or {}
        if (found := mostly_zero(zeros, zeros)) is not None:
            warn_of_sparse_steps(type(self.inner).__name__, found, zeros[found])

    def _compare(self) -> None:
        """Let the ranks compare the factors by which they shrank ``agreed``, which must be equal."""
        if self.decay == "outer":
            # Nothing is sent for the decay, so only this comparison finds ranks whose rates or decays differ.
            self.exchange.protocol.compare(shrunk_by=self._shrunk_by)
            self._shrunk_by = [1.0] * len(self._members)

    def _average_moments(self) -> None:
        if self._moments is not None and self.exchange.step % int(self.moments) == 0:
            self._moments.average(self.inner, self.exchange)

    def _begin_exchange(self) -> None:
        """Begin the step of the exchange, and measure at intervals what the pseudo-gradients have in common."""
        super()._begin_exchange()
        if self._noise is not None and self._noise.due():
            self._noise.measure(self.delta.data)

    def _step_alone(self) -> bool:
        if self.decay == "inner":
            return self._lengthened_step()
        self._shrink()
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            group["weight_decay"] = 0.0
        try:
            return self._lengthened_step()
        finally:
            for group, decay in zip(self.param_groups, decays, strict=True):
                # Also after a step that raised: schedulers and checkpoints must see the decay.
                group["weight_decay"] = decay

    def _lengthened_step(self) -> bool:
        """Make the inner step, and multiply it by the factor of each group; return whether it was made."""
        factors = [] if self._noise is None else self._noise.factors
        longer = [
            (number, factor)
            for factor, numbers in zip(factors, self._members, strict=False)
            for number in numbers
            if factor != 1
        ]
        # Pseudo-gradients are written when the round ends; until then their slots are free.
        for number, _ in longer:
            self.delta.views[number].copy_(self.params[number])
        made = super()._step_alone()
        for number, factor in longer:
            param, before = self.params[number], self.delta.views[number]
            param.copy_(before.lerp_(param.float(), factor))
        return made

    def _shrink(self) -> None:
        """Apply a step's weight decay: to the agreed parameters, and to the change of this round."""
        for index, (group, numbers) in enumerate(zip(self.param_groups, self._members, strict=True)):
            factor = 1 - float(group["lr"]) * float(group["weight_decay"])
            self._shrunk_by[index] *= factor
            for number in numbers if factor != 1 else ():
                param = self.params[number]
                if param.requires_grad:
                    # Before ``agreed`` changes, because the pseudo-gradient is the distance from it.
                    delta = self._delta_of(number).mul_(factor)
                    self.agreed.views[number].mul_(factor)
                    param.copy_(self._start(number) - delta)


def decoupled(inner: Optimizer) -> bool:
    """Return whether weight decay shrinks the parameters directly, as that of ``AdamW`` does.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> decoupled(torch.optim.AdamW([weight])), decoupled(torch.optim.Adam([weight]))
    (True, False)
    """
    all_decoupled = all(group.get("decoupled_weight_decay", False) for group in inner.param_groups)
    return all_decoupled or isinstance(inner, torch.optim.AdamW)


def shortened_by_noise(inner: Optimizer) -> bool:
    """Return whether steps are known to become shorter by the noise of gradients, in all phases of the optimizer.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> shortened_by_noise(torch.optim.AdamW([weight])), shortened_by_noise(torch.optim.RAdam([weight]))
    (True, False)
    """
    # The first steps of RAdam are linear in the gradient.
    return is_adaptive_class(type(inner)) and not isinstance(inner, torch.optim.RAdam)


def facts_of_correction(inner: Optimizer, given: bool | None, corrects: bool) -> dict[str, Any]:
    """Return what must be the same on all ranks, so that they correct their steps alike."""
    # Each group has a sample of its own.
    sizes = [sum(param.numel() for param in group["params"] if param.requires_grad) for group in inner.param_groups]
    return {
        "variance_correction": given,
        "noise_shortens_steps": shortened_by_noise(inner),
        "variance_groups": sizes if corrects else None,
    }


def check_correction(inner: Optimizer) -> None:
    """Refuse to correct steps that noise does not shorten."""
    name = "CompressedStep.variance_correction"
    divides = is_adaptive_class(type(inner)) or not type(inner).__module__.startswith("torch.optim")
    allowed = "False or None with an optimizer that does not divide by a mean of squares, as Adam does"
    require(divides, name, allowed, Verbatim(f"True with {type(inner).__name__}"))


def check_outer(inner: Optimizer) -> None:
    """Refuse to take the decay out of a step that does not contain it, or in which it goes through the gradient."""
    known = all("weight_decay" in group for group in inner.param_groups)
    shrinking = [getattr(torch.optim, name) for name in ("Adafactor", "Muon") if hasattr(torch.optim, name)]
    foreign = not type(inner).__module__.startswith("torch.optim")
    fits = known and (decoupled(inner) or foreign or isinstance(inner, tuple(shrinking)))
    allowed = "'inner' with an optimizer whose weight decay is not decoupled"
    require(fits, "CompressedStep.decay", allowed, Verbatim(f"'outer' with {type(inner).__name__}"))
