"""The exchange of one model's gradients: its methods, its plans, and all that it keeps between steps.

    bucket g (flat)  ->  units (a parameter, or joined neighbours)  ->  one session for each strategy  ->  g averaged

``step.py`` says what a bucket goes through. Each of the other things that there are to do is an object with one job:

    methods      which compressor, memory and strategy a parameter has        methods.py
    protocol     the numbers of the steps, and their comparison               protocol.py
    residuals    what is kept between steps, by the names of parameters       residual_store.py
    leftovers    residuals of methods that were left                          leftovers.py
    rollback     undo of a step that must not count                           rollback.py
    checkpoint   the saved state, and its use with other ranks                checkpoint.py

Invariants:
    * Everything is chosen from names, shapes and configuration, which all ranks compare before the first step. So all
      ranks build the same plans, and issue the same collectives in the same order.
    * A plan owns its buffers: after the first step of a bucket nothing as large as a gradient is allocated.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire._short_traceback import short_traceback
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine import checkpoint
from gradwire.engine.dense import DenseSession
from gradwire.engine.leftovers import Leftovers
from gradwire.engine.methods import Assigned, Methods
from gradwire.engine.part import nonfinite
from gradwire.engine.plan import Named, Plan
from gradwire.engine.planner import Planner
from gradwire.engine.policy import Policy
from gradwire.engine.protocol import StepProtocol
from gradwire.engine.residual_store import ResidualStore
from gradwire.engine.rollback import Rollback
from gradwire.engine.second_moment import SecondMoment
from gradwire.engine.step import prepare
from gradwire.engine.strategies.base import Strategy
from gradwire.engine.zeros import FirstZeros
from gradwire.errors import ConfigError, Verbatim, is_float32, is_int, require
from gradwire.kernels.native import check_environment, warn_without_kernels
from gradwire.kernels.stored import read
from gradwire.memory.base import Memory
from gradwire.metrics import Metrics
from gradwire.modes import ordinary, ordinary_modes
from gradwire.notices import log
from gradwire.transport.channel import Channel
from gradwire.transport.handshake import agree
from gradwire.vocabulary import Key

if TYPE_CHECKING:
    # The controller is made above, and gives itself to the exchange that it watches.
    from gradwire.auto.controller import AutoController

__all__ = ["USED", "Exchange"]


CAPTURED = (
    "a step must not be captured in a CUDA graph: a graph repeats what the device did, and not what the host does in "
    "each step, such as comparing the ranks and drawing random numbers; capture parts of the model, as "
    "torch.cuda.make_graphed_callables does, and leave the exchange outside"
)
"""Message where the exchange would become a part of a graph."""


USED, PENDING = 2, 1
"""Uses of a parameter in a step: some rank has a gradient; or none has, but something waits for it on some rank. The
largest of all ranks' counts, and 0 is neither."""


class Exchange:
    """Average flat gradients over the ranks of a group, compressed, with memories kept by parameter name.

    Args:
        compressor: the main compressor.
        memory: a memory or its name; None chooses from the compressor's declared feedback.
        strategy: a strategy or its name; None chooses from declared properties and the number of workers.
        group: a process group that nobody else uses; None is a group of one.
        policy: per-parameter choices.
        seed: seed of all random streams, >= 0; the same on all ranks.
        device: device of the gradients.
        force: use error feedback where the method declares it unsafe, or none where it declares it required.
        residual_dtype: dtype of residuals whose memory is given by name or chosen, "float32", "bfloat16" ("bf16") or
            "int4".
        quiet: true: nothing is shown on stderr unasked.
        channel: channel to the other ranks, in place of one on ``group``.

    Raises:
        ConfigError: a combination that cannot work, with the remedy.
    """

    @short_traceback
    @ordinary_modes()
    def __init__(
        self,
        compressor: Compressor,
        *,
        memory: Memory | str | None = None,
        strategy: Strategy | str | None = None,
        group: dist.ProcessGroup | None = None,
        policy: Policy | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        force: bool = False,
        residual_dtype: str = "float32",
        quiet: bool = False,
        channel: Channel | None = None,
    ) -> None:
        check_environment()
        require(is_int(seed, 0), "seed", "an integer >= 0", seed)
        require(isinstance(policy, Policy | None), "policy", "a Policy or None", policy)
        self.seed, self.device, self.quiet = int(seed), torch.device(device), quiet
        self.channel = Channel(group, Metrics()) if channel is None else channel
        self.counters, world = self.channel.metrics, self.channel.world
        self.residuals = ResidualStore(world, self.device, self.seed)
        self.methods = Methods(
            compressor,
            memory,
            strategy,
            policy=policy or Policy(),
            world=world,
            force=force,
            residual_dtype=residual_dtype,
        )
        self.protocol = StepProtocol(self.channel, self.device)
        self.leftovers, self.rollback = Leftovers(self.residuals), Rollback(self.device)
        self.planner, self.first_zeros = Planner(self.channel, self.device, self.residuals), FirstZeros()
        self.second_moment: SecondMoment | None = None
        self.controller: AutoController | None = None
        if self.device.type == "cpu" and not capabilities.identity(compressor):
            warn_without_kernels()

    @property
    def step(self) -> int:
        """The number of the current step; 0 before the first."""
        return self.protocol.step

    @property
    def key(self) -> Key:
        """The key of the random streams of this step and rank."""
        return Key(seed=self.seed, step=self.protocol.step, rank=self.channel.rank)

    def watch(self, controller: AutoController) -> None:
        """Let an observer watch the exchange from now on, and give its parameters methods."""
        self.controller = controller

    def expect_apart(self, buckets: int) -> None:
        """Expect each of so many buckets in a step of its own: what a loaded state holds waits longer for them."""
        self.residuals.buckets_apart = buckets

    def measure_noise(self) -> None:
        """Measure from now on how much compression lengthens the mean; all ranks must call it, before a step."""
        self.second_moment = SecondMoment(self.device, self.methods.policy.start_after)

    def assign(self, assigned: Assigned) -> None:
        """Assign compressors to single parameters, from the next bucket on. All ranks must call it alike.

        The residual of a parameter whose new method keeps none is sent with its next gradient.

        Args:
            assigned: compressors by name of the parameter; all others have the main compressor. A parameter that
                travels uncompressed, by its size or because it is excluded, and one with an override, stay as they are.

        Raises:
            ConfigError: a combination that cannot work, with the remedy.
        """
        methods = self.methods
        for compressor, strategy in assigned.values():
            methods.check(compressor, strategy)
        # The last step may still be undone, and must not restore residuals that ``leave`` has let go.
        self.end_step()
        methods.assign(assigned)
        self.forget_plans()
        self.leftovers.leave(
            lambda name: "residual" in methods.memory_for(methods.main_of(name, methods.compressor)).buffers
        )

    def change(self, methods: Methods) -> None:
        """Use these methods in place of what was configured or decided; residuals that they have no use for are
        dropped. All ranks must call it, between steps; a controller does not decide any more.
        """
        self.controller, self.methods = None, methods
        self.leftovers.forget()
        self.forget_plans()
        self.residuals.narrow(methods.buffers("buffers"))
        self.rollback.forget()

    def describe(self, params: Sequence[Named], **facts: Any) -> str:
        """Describe configuration and parameters as JSON, with any other ``facts``: all ranks must agree on them."""
        return self.methods.describe(params, seed=self.seed, **facts)

    def begin_step(self) -> None:
        """Count a step; to be called once before the first bucket.

        Raises:
            ConfigError: the step is being captured in a CUDA graph.
        """
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise ConfigError(CAPTURED)
        # The new step overwrites the copies with which the last one can be undone.
        self.end_step()
        if self.controller is not None:
            self.controller.begin()
        # Before the comparison, whose bytes belong to the new step.
        self.counters.turn(self.protocol.step)
        self.protocol.begin()
        if self.residuals.patience:
            self.residuals.wait_less()

    def open(self, check: Callable[[], None] | None = None, first: Sequence[str] = ()) -> None:
        """Start to compare this step with the other ranks, unless that was done in this step.

        ``run`` and ``average`` do this by themselves; called earlier, it is over earlier.

        Args:
            check: function that checks what may be wrong on this rank alone; if it raises, all ranks that come to this
                step raise.
            first: names of the parameters of the first bucket; empty: they are not known yet.
        """
        if not self.protocol.opened:
            self.protocol.open(self.methods, check, first)

    def end_step(self) -> None:
        """Determine whether the last step counts; ``begin_step`` and ``state_dict`` call it by themselves."""
        spoilt = self.rollback.end(self.protocol.step)
        if spoilt is None:
            return
        # A function, because the flag is needed only where leftovers were sent, and to read it waits for the device.
        self.leftovers.end(lambda: self.rollback.skips_steps and bool(spoilt))
        if self.second_moment is not None:
            self.second_moment.end_step(self.protocol.step)

    @ordinary_modes()
    def run(
        self,
        flat: Tensor,
        params: Sequence[Named],
        itemsize: int = 4,
        ready: Any = None,
        given: Tensor | None = None,
        uses: Mapping[int, Tensor] | None = None,
    ) -> None:
        """Replace ``flat`` by its mean over the ranks.

        Args:
            flat: contiguous float32, the parameters' gradients end to end in the order of ``params``.
            itemsize: bytes an element that an uncompressed exchange would send: 2 for a 16-bit model.
            ready: time at which the gradients were there, for a controller; None: the beginning of the step.
            given: the gradients themselves, where ``flat`` is a copy of them in another dtype: if nothing of them is
                compressed, the mean is made of these, as DDP makes it, and ``flat`` is a copy of that.
            uses: the uses of parameters that may be unused, by their place in ``params``: uint8 of one element, the
                same on all ranks. What is not ``USED`` gets zero, and all that is kept for it stays as it was. The kept
                tensors of these parameters are copied.

        Raises:
            ConfigError: ``flat`` is not of this form, or no step was begun.
        """
        known = self.planner.known(params)
        self._check(flat, params, known)
        flat = ordinary(flat)
        if not self.protocol.opened:
            self.open(first=[name for name, _ in params])
        seen = self.controller.before(flat, params, ready) if self.controller is not None else None
        if given is not None and self._whole(params, given.dtype):
            flat.copy_(self.mean(given))
        else:
            self._run(flat, params, itemsize, uses)
        if self.controller is not None:
            self.controller.after(flat, seen)

    def _run(self, flat: Tensor, params: Sequence[Named], itemsize: int, uses: Mapping[int, Tensor] | None) -> None:
        plan = self.plan(params)
        self.first_zeros.count(flat, plan)
        # Only now, because the controller may just have given the parameters other methods, and so other tensors.
        put_back = self._set_aside(flat, params, uses) if uses else None
        pending = {params[i][0]: use == PENDING for i, use in uses.items()} if uses else None
        self.counters.dense_bytes += 2 * (self.channel.world - 1) * flat.numel() * itemsize // self.channel.world
        prepare(flat, plan, self, plan.move, (flat, 0, 1.0), pending)()
        if put_back is not None:
            put_back()

    def _whole(self, params: Sequence[Named], dtype: torch.dtype) -> bool:
        """Return whether a bucket is averaged as it is: none of it is compressed, measured, or waits."""
        own = any(name in self.methods.assigned for name, _ in params) or self.leftovers.of(name for name, _ in params)
        return self.second_moment is None and not own and self.methods.sends_as_it_is(dtype)

    def plain(self, dtype: torch.dtype) -> bool:
        """Return whether whole buckets of this dtype may be averaged in place, because ``run`` gives the exact mean.

        So it is where the method sends the gradients as they are, and nothing is kept of them, measured, or waiting.
        """
        watched = self.controller is not None or self.second_moment is not None
        waits = bool(self.methods.assigned or self.leftovers.waiting)
        return not watched and not waits and self.methods.sends_as_it_is(dtype)

    @ordinary_modes()
    def begin_mean(self, bucket: Tensor) -> Future[Tensor]:
        """Start to replace a bucket by its mean, if ``plain`` or if no method takes it; several may be under way.

        Args:
            bucket: contiguous, of as many elements on all ranks; or sparse and coalesced, of one shape.

        Returns:
            The bucket when it is the mean.
        """
        self.open()
        self.counters.dense_bytes += self.channel.summed(bucket)
        return self.channel.begin_mean(bucket, self.watched())

    def mean(self, bucket: Tensor) -> Tensor:
        """Replace a bucket by its mean as ``begin_mean`` does, and wait for it."""
        mean = self.begin_mean(bucket)
        # The sum was posted before the ranks were compared. If they are in different calls it may never end, and this
        # says so.
        self.channel.settle()
        return mean.wait()

    def watched(self) -> Callable[[Tensor], None]:
        """Return a function that counts the step as not finite if a mean is not; any thread may call it, and it keeps
        nothing alive.
        """
        # The backend's thread holds the function for longer than anybody else, and must not keep the model's buffers
        # alive.
        reference = weakref.ref(self)

        def arrived(mean: Tensor) -> None:
            exchange, bad = reference(), nonfinite(mean)
            # Of a mean on the CPU it is known at once, and nearly all are finite.
            if exchange is not None and (mean.device.type != "cpu" or bool(bad)):
                exchange.rollback.note([bad])

        return arrived

    def _set_aside(self, flat: Tensor, params: Sequence[Named], uses: Mapping[int, Tensor]) -> Callable[[], None]:
        """Copy what is kept for parameters that may be unused; return the function that puts it back where they are."""
        copies = {i: [(each, each.clone()) for each in self.residuals.tensors_of(params[i][0])] for i in uses}

        def put_back() -> None:
            views = torch.split(flat, [torch.Size(shape).numel() for _, shape in params])
            for i, use in uses.items():
                unused = use != USED
                views[i].masked_fill_(unused, 0.0)
                for tensor, copy in copies[i]:
                    # A select, because to read on the host which are unused would wait for the device.
                    torch.where(unused, copy, tensor, out=tensor)

        return put_back

    def note_pending(self, uses: Tensor, names: Mapping[int, str]) -> None:
        """Set the use of parameters without a gradient to ``PENDING`` where something waits for them on this rank.

        Only a controller leaves methods for others that keep nothing, so without one nothing is looked at.

        Args:
            uses: uint8, changed in place.
            names: names of these parameters, by their place in ``uses``.
        """
        for i, name in names.items() if self.controller is not None else ():
            for tensor in self.residuals.tensors_of(name):
                uses[i] = torch.maximum(uses[i], read(tensor).any().to(torch.uint8) * PENDING)

    def any_rank(self, flags: Tensor) -> None:
        """Replace each flag by the largest of all ranks', for facts that all must know before a bucket is exchanged.

        Args:
            flags: uint8, as many on all ranks.
        """
        self.open()
        # This may be the first message of the step, before which the ranks are compared.
        self.channel.all_reduce(flags, "max")

    @ordinary_modes()
    def average(self, flat: Tensor, *, extra: bool = False) -> Tensor:
        """Replace ``flat`` by its uncompressed mean over the ranks; kept tensors stay.

        Args:
            flat: contiguous float32.
            extra: without compression it would not be sent, so it counts as sent, and not as what could be.

        Returns:
            bool of one element: whether the mean has a value that is not finite.
        """
        self.open()
        if not extra:
            self.counters.dense_bytes += self.channel.summed(flat)
        mean = DenseSession([(0, flat.numel())], self.channel, self.device)
        mean.begin(flat)
        bad = mean.bad()
        # Noted like the flag of a message, because the step must not count where only uncompressed values are bad.
        self.rollback.note([bad])
        return bad

    def state_dict(self) -> dict[str, Any]:
        """Return all that this rank must save to continue bit for bit: memories, states of the methods, and the step.

        Plain dicts, numbers and tensors, below the rank's number; the tensors are those in use.
        """
        # A step that does not count must not be saved.
        self.end_step()
        state = checkpoint.state_of(
            self.channel.world, self.channel.rank, self.protocol.step, self.residuals.state_dict()
        )
        moment = {} if self.second_moment is None else {"second_moment": self.second_moment.state_dict()}
        controller = {} if self.controller is None else {"auto": json.dumps(self.controller.state_dict())}
        return {**state, "method": self.methods.left(), **moment, **controller}

    @ordinary_modes()
    def load_state_dict(
        self,
        state: Mapping[str, Any],
        *,
        on_resize: checkpoint.OnResize = "error",
        sizes: Mapping[str, int] | None = None,
        parts: int = 1,
        fit: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    ) -> None:
        """Continue from a ``state_dict``, and forget everything else. All ranks must call it.

        Args:
            state: state of this rank, or the states of all ranks merged; or that of rank 0 alone, and the residuals of
                the others are lost. Where a method keeps nothing, the state of any rank, and of any number of ranks.
            on_resize: treatment of a state of another number of ranks. "reshard": the mean of the residuals, the part
                of the mean update that was not sent, is kept, for which the states of all ranks are needed; "reset":
                only the step is taken.
            sizes: elements of each parameter, frozen ones among them, to be compared with the state's.
            parts: equal parts in which each is stored: its shards, where whole parameters are kept for sharded ones.
            fit: makes of the state the one that is loaded; its error is raised on all ranks.

        Raises:
            ConfigError: the state is of another number of ranks and ``on_resize`` is "error", is not complete, or has
                what this configuration would never send.
            GroupError: ranks were given states of different steps or decisions.
        """
        kept, lost = list[Mapping[str, Any]](), list[bool]()

        def describe() -> str:
            checkpoint.check_form(state)
            whole = state if fit is None else fit(state)
            checkpoint.check(whole, self.channel.world, on_resize)
            if self.controller is not None:
                self.controller.check_state(json.loads(state.get("auto", "{}")), sizes or ())
            here = (self.channel.rank, self.channel.world)
            kept.append(checkpoint.of_rank(whole, *here, on_resize, self.methods.buffers("squared")))
            lost.append(checkpoint.loses(whole, *here, on_resize))
            # An autotuner's decisions come with a state, and so do the residuals that they have left.
            waits = {"residual"} if self.controller is not None else set()
            checkpoint.check_names(whole, self.methods.buffers("buffers") | waits, sizes, parts)
            told = {key: state[key] for key in ("world", "step")}
            if "buckets" in state:
                told["buckets"] = json.loads(state["buckets"])
            if self.controller is not None:
                # Ranks that gather their weights by different methods would wait for each other.
                told["decisions"] = json.loads(state.get("auto", "{}")).get("decisions", [])
            return json.dumps({"on_resize": on_resize, "state": told})

        # Before anything changes: if one rank refuses its state, all of them raise, and none has loaded.
        agree(self.channel, "load_state_dict", describe, self.device)
        # The flags of the last step belong to tensors that are replaced below.
        self.end_step()
        # Nothing is handed back, unlike in ``forget_plans``: all kept tensors are replaced.
        self.planner.drop()
        self.residuals.load_state_dict(kept[0])
        self.protocol.restart(state["step"])
        self.leftovers.restart()
        if self.controller is not None:
            self.controller.load_state_dict(json.loads(state.get("auto", "{}")))
        if self.second_moment is not None:
            self.second_moment.restart(self.protocol.step)
            # The noise in a mean depends on the number of ranks.
            if "second_moment" in state and state["world"] == self.channel.world:
                self.second_moment.load_state_dict(state["second_moment"])
        # The counters have measured the messages of this call, which belong to no step.
        self.counters.reset(self.protocol.step)
        self.rollback.restart()
        self.rollback.forget()
        if self.channel.rank == 1 and lost[0]:
            # The first of the ranks that have nothing of their own says so for all of them.
            log.warning(
                "the state is that of rank 0 alone: what waited on other ranks, in residuals and shards of the mean, "
                "is lost. To keep it, save on every rank (docs/checkpoints.md)"
            )
        before, now = state.get("method"), self.methods.left()
        if before not in (None, now) and self.channel.rank == 0:
            log.warning("the state was saved with %s; this run goes on with %s, which sends what waits", before, now)

    @ordinary_modes()
    def scale_residuals(self, factor: float, names: Container[str] | None = None) -> None:
        """Multiply all residuals: by the old learning rate over the new one, when the rate jumps.

        A residual is in the gradient's unit, so what it holds of old gradients is applied with the rate of the step in
        which it is sent. Scaled, it is applied with the rate that it was meant for.

        Args:
            factor: a finite number > 0, the same on all ranks.
            names: names of the parameters; None: all.

        Raises:
            ConfigError: the factor is outside its range.
        """
        require(is_float32(factor) and factor > 0, "factor", "a finite number > 0", factor)
        # The copies of a step that does not count are in the old unit, so it is undone before.
        self.end_step()
        self.residuals.scale(factor, names)

    @ordinary_modes()
    def rescale(self, factor: float) -> None:
        """Multiply all tensors kept for elements: by the new loss scale over the old one, when that changes.

        Args:
            factor: a finite number > 0, the same on all ranks.

        Raises:
            ConfigError: the factor is outside its range.
        """
        require(is_float32(factor) and factor > 0, "factor", "a finite number > 0", factor)
        # The copies of a step that does not count are in the old unit, so it is undone before.
        self.end_step()
        self.residuals.rescale(factor)

    def metrics(self) -> dict[str, Any]:
        """Return counters since the start or since a state was loaded, and the norm of this rank's residuals."""
        counted = {**self.counters.as_dict(), "steps": self.protocol.step, "nonfinite_steps": self.rollback.counted()}
        moment = {} if self.second_moment is None else {"rate_factor": self.second_moment.factor}
        controller = {} if self.controller is None else self.controller.metrics()
        return {**counted, "residual_norm": self.residuals.norm(), **moment, **controller}

    def decisions(self) -> dict[str, Any]:
        """Return what a controller has chosen and why; empty where there is none."""
        return {} if self.controller is None else self.controller.report()

    def _check(self, flat: Tensor, params: Sequence[Named], known: Plan | None) -> None:
        numel = sum(torch.Size(shape).numel() for _, shape in params) if known is None else known.numel
        fits = flat.dtype == torch.float32 and flat.is_contiguous() and flat.shape == (numel,)
        if not fits or self.protocol.step == 0:
            require(self.protocol.step > 0, "run", "called after begin_step", Verbatim("a call before it"))
            form = f"contiguous float32 of shape ({numel},), as params say"
            require(fits, "flat", form, Verbatim(f"{flat.dtype} of shape {tuple(flat.shape)}"))

    def plan(self, params: Sequence[Named]) -> Plan:
        """Find or make the plan of a bucket for the compressor of this step; all ranks must call it alike."""
        methods, plan = self.methods, self.planner.known(params)
        main = methods.at(self.protocol.step)
        # In most steps it is the very compressor that the plan was made for.
        if plan is None or (plan.main is not main and not self.planner.fits(plan, main, methods)):
            if plan is not None and self.second_moment is not None:
                self.second_moment.changed(self.protocol.step)
            plan = self.planner.make(params, main, methods)
        plan.warm = self.protocol.step <= methods.policy.start_after
        return plan

    def forget_plans(self) -> None:
        """Make new plans in the next step; kept tensors stay."""
        # Compared in every step, so that a rank on which the methods were not changed is found.
        self.protocol.epoch += 1
        if self.second_moment is not None:
            self.second_moment.restart(self.protocol.step)
        self.planner.forget()
