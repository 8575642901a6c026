"""The exchange of one bucket of gradients: where memory, compressor and strategy meet.

    bucket g (flat)  ->  units (a parameter, or joined neighbours)  ->  one session for each strategy  ->  g averaged

Law: everything is chosen from names, shapes and configuration, which all ranks compare before the first step; so all
ranks build the same plan, and issue the same collectives in the same order. A plan owns its buffers: after the first
step of a bucket nothing of gradient size is allocated.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import weakref
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire import registry
from gradwire.comm.base import Session, Site, Strategy
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.none import Identity
from gradwire.errors import Verbatim, as_python, is_float32, is_int, require
from gradwire.exchange import checkpoint
from gradwire.exchange.plan import (
    Moving,
    Named,
    Plan,
    carries,
    default_strategy,
    grouped,
    joined,
    same_choices,
    try_retune,
)
from gradwire.exchange.policy import Policy
from gradwire.exchange.residual_store import ResidualStore
from gradwire.exchange.second_moment import SecondMoment
from gradwire.exchange.undo import Undo
from gradwire.group.agree import FIRST_BUCKET, Opening, agree
from gradwire.group.channel import Channel
from gradwire.group.dense import CarriedDense, DenseSession, is_carried
from gradwire.group.part import Unit, nonfinite
from gradwire.kernels import Places
from gradwire.kernels.native import check_environment, warn_without_kernels
from gradwire.kernels.stored import FLOAT32, read
from gradwire.memory.base import Memory, check_memory, default_memory
from gradwire.metrics import Metrics
from gradwire.modes import ordinary, ordinary_modes
from gradwire.vocabulary import Key, State

__all__ = ["PENDING", "USED", "Assigned", "Exchange", "Named", "Pilot", "bucket_text", "default_strategy"]

log = logging.getLogger("gradwire")

PATIENCE = 3
"""Steps in which loaded shards wait for their cut: DDP rebuilds its buckets after the first."""


USED, PENDING = 2, 1
"""Uses of a parameter in a step: some rank has a gradient; or none has, but something waits for it on some rank. The
largest of all ranks' counts, and 0 is neither."""


Assigned = Mapping[str, tuple[Compressor, Strategy]]
"""Parameters that have a method of their own, by name, and how its payloads travel."""


class Pilot(Protocol):
    """An observer that watches an exchange and gives its parameters methods, as ``gradwire.auto`` does."""

    def scatter(self, check: Callable[[Compressor], None], buffers: Callable[[], int | None] = lambda: None) -> None:
        """Declare that gradients are reduced to their owners and not averaged; called once, before the first step."""
        ...

    def begin(self) -> None:
        """Begin a step."""
        ...

    @property
    def timed(self) -> bool:
        """Return whether times of the current step are wanted."""
        ...

    @property
    def probing(self) -> bool:
        """Return whether the current step is needed for measurements, which nothing else may disturb."""
        ...

    def before(
        self,
        flat: Tensor,
        params: Sequence[Named],
        ready: Any,
        own: Tensor | None = None,
        itemsize: int = 4,
        held: float | None = 0.0,
        *,
        blocking: bool = False,
        stalls: tuple[tuple[Any, Any], ...] = (),
    ) -> Any:
        """Prepare a bucket's exchange; the bucket has been there since ``ready``. Return its record."""
        ...

    def started(self, run: Any) -> None:
        """Note that another thread takes a bucket that was prepared before; ``run`` is its record."""
        ...

    def after(self, flat: Tensor, run: Any, multiplied: float = 1.0) -> None:
        """Note that a bucket was exchanged; ``flat`` is its mean, times a number, and ``run`` its record."""
        ...

    def to_config(self) -> dict[str, Any]:
        """The settings that all ranks must share, ready for JSON."""
        ...

    def metrics(self) -> dict[str, Any]:
        """Return the choices, and the reasons for them."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is needed to continue, ready for JSON."""
        ...

    def check_state(self, state: Mapping[str, Any], frozen: Iterable[str] = ()) -> None:
        """Refuse what ``load_state_dict`` could not go on from; ``frozen`` parameters are not trained now."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict`` that was checked; an empty state begins anew."""
        ...

    def leave(self) -> None:
        """Tell the other ranks what only this one knows; all ranks call it, before the exchange goes on without it."""
        ...


def first_of(params: Sequence[Named]) -> str:
    """The name of the first parameter of a bucket; "" of an empty one."""
    return params[0][0] if params else ""


@lru_cache(maxsize=1024)
def bucket_text(names: tuple[str, ...]) -> str:
    """The parameters of a bucket, at least one, in a few words, which differ for others and for another order.

    >>> bucket_text(("weight", "bias"))
    'weight and 1 more (de06ee62)'
    """
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]
    return f"{names[0]} and {len(names) - 1} more ({digest})"


def plain(value: object) -> object:
    """Convert a value that JSON does not know: a number of numpy's to Python's, anything else to its text."""
    python = as_python(value)
    return python if python is not value else repr(value)


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

    Raises:
        ConfigError: a combination that cannot work, with the remedy.
    """

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
    ) -> None:
        check_environment()
        require(is_int(seed, 0), "seed", "an integer >= 0", seed)
        seed = int(seed)
        require(isinstance(policy, Policy | None), "policy", "a Policy or None", policy)
        self.policy, self.seed, self.force = policy or Policy(), seed, force
        self.device = torch.device(device)
        self.counters = Metrics()
        self.channel, self._undo = Channel(group, self.counters), Undo()
        self._opening, self._opened = Opening(self.channel, self.device), True
        self._description: tuple[tuple[object, ...], str] = ((), "")
        self.dropped: int | None = None  # Gradients that were computed and not exchanged, where somebody counts them.
        self.compared: dict[str, Any] = {}  # Further values that must be the same on all ranks in a step.
        self.skips_steps = False
        self.pilot: Pilot | None = None
        self.assigned: dict[str, tuple[Compressor, Strategy]] = {}
        self._draining: set[str] = set()
        self._drained: list[tuple[str, Tensor]] = []
        self.second_moment: SecondMoment | None = None  # Made by who corrects an optimizer's learning rate by it.
        self.residuals = ResidualStore(self.channel.world, self.device, seed)
        self.residual_dtype = residual_dtype
        self.step, self._patience, self.epoch = 0, 0, 0  # Epochs end when all plans are dropped.
        self._plans: dict[str, Plan] = {}  # By the first of their parameters, of which no two share one.
        self._nonzeros: dict[str, tuple[int, Tensor | None]] = {}
        """The elements of each parameter and, of a matrix, how many that this rank gave first were not zero."""
        self._bad: list[Tensor] = []
        self._ended: tuple[int, Tensor | None] = (0, None)  # The last step that had flags, and whether one was set.
        self._nonfinite = torch.zeros((), dtype=torch.int64, device=self.device)
        self.choose(compressor, memory, strategy)
        if self.device.type == "cpu" and not compressor.identity:
            warn_without_kernels()

    def choose(
        self, compressor: Compressor, memory: Memory | str | None = None, strategy: Strategy | str | None = None
    ) -> None:
        """Use this compressor, with a memory and a strategy or None for those that suit it.

        Raises:
            ConfigError: a combination that cannot work, with the remedy.
        """
        made = "a compressor, which gradwire.compressor makes from a name"
        require(isinstance(compressor, Compressor), "compressor", made, compressor)
        require(isinstance(memory, Memory | str | None), "memory", "a memory or its name", memory)
        require(isinstance(strategy, Strategy | str | None), "strategy", "a strategy or its name", strategy)
        self.compressor = compressor
        self.memory = self._named_memory(memory) if isinstance(memory, str) else memory
        self.strategy = registry.build("comm", strategy) if isinstance(strategy, str) else strategy
        for each in [compressor, *self.policy.overrides.values()]:
            strategy = self.strategy_for(each)
            strategy.check(each)
            each.check_world(self.channel.world)
            strategy.check_memory(self.memory_for(each))
        self.compressor = self._as_kept(compressor)
        overrides = {pattern: self._as_kept(each) for pattern, each in self.policy.overrides.items()}
        self.policy = dataclasses.replace(self.policy, overrides=overrides)
        memory, strategy = self.memory_for(self.compressor), self.strategy_for(self.compressor)
        same = strategy.sums and not overrides and not self.policy.schedule
        self._summed = same and memory.keeps_nothing and memory.dense is None

    def meet(self) -> None:
        """Let the strategies ask for the facts about the ranks that they need. All ranks must call it, at set-up.

        Raises:
            ConfigError: a strategy cannot run among these ranks, the same on all of them, with the remedy.
        """
        for each in [self.compressor, *self.policy.overrides.values()]:
            self.strategy_for(each).meet(self.channel, self.device)

    def assign(self, assigned: Assigned) -> None:
        """Assign compressors to single parameters, from the next bucket on. All ranks must call it alike.

        What waits for a parameter whose new method keeps nothing back is sent with its next gradient.

        Args:
            assigned: compressors by name of the parameter; all others have the main compressor. A parameter that
                travels uncompressed, by its size or because it is excluded, and one with an override, stay as they are.

        Raises:
            ConfigError: a combination that cannot work, with the remedy.
        """
        for compressor, strategy in assigned.values():
            strategy.check(compressor)
            strategy.check_memory(self.memory_for(compressor))
        kept = {id(each): self._as_kept(each) for each, _ in assigned.values()}
        self.end_step()
        self.assigned = {name: (kept[id(each)], strategy) for name, (each, strategy) in assigned.items()}
        self.forget_plans()
        waits = self.residuals.worker.get("residual", {})
        self._draining = {
            name for name in waits if "residual" not in self.memory_for(self.main_of(name, self.compressor)).buffers
        }
        # No plan will ask for these shards, and what is given up later would find no residual any more.
        self.residuals.give_up_waiting(self._draining)

    def take_over(self) -> None:
        """Detach the pilot, so that nothing decides for this exchange any more; residuals stay. All
        ranks must call it.
        """
        self.pilot, self.assigned = None, {}
        self._draining = set()

    @property
    def draining(self) -> bool:
        """Return whether residuals of an earlier method are left, to be sent with the next gradients."""
        return bool(self._draining)

    def left_over(self, name: str) -> Tensor | None:
        """Return what a method that was left has kept of a parameter; the caller adds it to the next gradient.

        It is forgotten when the step counts for which ``drained`` was called.
        """
        return self.residuals.worker["residual"][name] if name in self._draining else None

    def drained(self, name: str, bad: Tensor) -> None:
        """Say that what was left over of a parameter was sent; it stays where ``bad``, bool of one element."""
        self._drained.append((name, bad))

    def main_of(self, name: str, main: Compressor) -> Compressor:
        """The compressor of parameters that have no override."""
        return self.assigned[name][0] if name in self.assigned else main

    def _as_kept(self, compressor: Compressor) -> Compressor:
        """The form of a compressor whose residual is as narrow as its memory keeps it."""
        return compressor if self.memory_for(compressor).form == FLOAT32 else compressor.in_16_bits()

    def memory_for(self, compressor: Compressor) -> Memory:
        """The memory of a compressor.

        Raises:
            ConfigError: error feedback is needed and was refused, or would diverge and was asked for; or the memory
                cannot serve the method.
        """
        own = compressor.memory is not None and not compressor.same_method(self.compressor)
        asked = None if own else self.memory
        memory = asked or self._named_memory(default_memory(compressor))
        check_memory(compressor, memory, force=self.force)
        return memory

    def _named_memory(self, name: str) -> Memory:
        takes_dtype = registry.find("memory", registry.named_of(name)["name"]).takes_dtype
        params = {"dtype": self.residual_dtype} if takes_dtype and self.residual_dtype != "float32" else {}
        memory: Memory = registry.build("memory", name, params)
        return memory

    def strategy_for(self, compressor: Compressor) -> Strategy:
        """The strategy of a compressor: the chosen one, except for an override that it cannot carry."""
        main = compressor.same_method(self.compressor)
        if self.strategy is not None and (main or carries(self.strategy, compressor)):
            return self.strategy
        built: Strategy = registry.build("comm", default_strategy(compressor, self.channel.world))
        return built

    def describe(self, params: Sequence[Named], **facts: Any) -> str:
        """Describe configuration and parameters as JSON, with any other ``facts``: all ranks must agree on
        them.
        """
        for name, shape in params:
            self.policy.choose(name, shape, self.compressor)  # Tries a researcher's own method, which may fail here.
        return json.dumps(
            {
                **facts,
                "compressor": self.compressor.to_config(),
                "memory": self.memory_for(self.compressor).to_config(),
                "strategy": self.strategy_for(self.compressor).to_config(),
                "policy": self.policy.to_config(),
                "seed": self.seed,
                "params": [[name, list(shape)] for name, shape in params],
            },
            sort_keys=True,
            default=plain,
        )

    def begin_step(self) -> None:
        """Count a step; to be called once before the first bucket."""
        self.end_step()
        if self.pilot is not None:
            self.pilot.begin()
        self.step += 1
        self._opened = False
        self._patience -= 1
        if self._patience == 0:
            self.residuals.give_up_waiting()

    def open(self, check: Callable[[], None] = lambda: None, first: Sequence[str] = ()) -> None:
        """Start to compare this step with the other ranks, unless that was done in this step.

        ``run`` and ``average`` do this by themselves; called earlier, it is over earlier. The ranks compare the number
        of the step, that of the iteration where ``dropped`` is counted, how often states were loaded and methods
        changed, the configuration with the values of this step's schedule, and the step's first bucket.

        Args:
            check: function that checks what may be wrong on this rank alone; if it raises, all ranks that come to this
                step hear of it.
            first: names of the parameters of the first bucket; empty: they are not known yet.
        """

        def describe() -> str:
            check()
            return self._describe_step(tuple(first))

        if not self._opened:
            self._opened = True
            self._opening.begin(self.step, describe)

    def _describe_step(self, first: tuple[str, ...]) -> str:
        main = self.policy.at(self.step - 1, self.compressor)
        known = (main, self.memory, self.strategy, self.epoch)
        if self._description[0] != known:
            settings = {
                "compressor": main.to_config(),
                "memory": self.memory_for(main).to_config(),
                "strategy": self.strategy_for(main).to_config(),
                "generation": self.epoch,
                "policy": {
                    "min_numel": self.policy.min_numel,
                    "exclude": list(self.policy.exclude),
                    "start_after": self.policy.start_after,
                },
            }
            self._description = known, json.dumps(settings, sort_keys=True, default=repr)
        iteration = f'"iteration": {self.step + self.dropped}, ' if self.dropped is not None else ""
        # Buckets of one size would be added up, whatever is in them.
        bucket = {FIRST_BUCKET: bucket_text(first)} if first else {}
        further = f"{json.dumps(self.compared | bucket)[1:-1]}, " if self.compared or bucket else ""
        return f'{{"step": {self.step}, {iteration}{further}{self._description[1][1:]}'

    def end_step(self) -> None:
        """Determine whether the last step counts; ``begin_step`` and ``state_dict`` call it by themselves."""
        if self._bad:
            bad, self._bad = self._bad, []
            self._end_step(bad)

    @ordinary_modes()
    def _end_step(self, bad: Sequence[Tensor]) -> None:
        # The flags are added on the device, so that counting never waits for it.
        spoilt = torch.stack(list(bad)).any() if len(bad) > 1 else bad[0]
        self._ended = self.step, spoilt
        if self.device.type != "cpu" or bool(spoilt):
            self._nonfinite += spoilt
        self._undo.end(spoilt)
        if self._drained:
            self._end_draining(spoilt)
        if self.second_moment is not None:
            self.second_moment.end_step(self.step)

    def spoilt(self, step: int) -> bool:
        """Return whether a step, the last that ended, had a value that is not finite; it waits for the device."""
        return self._ended[0] == step and bool(self._ended[1])

    def remember(self, names: Collection[str]) -> None:
        """Keep copies of all that an exchange of these parameters may change, if whole steps can be undone."""
        if self.skips_steps:
            self._undo.remember(self.residuals.changing(names))

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
            ready: time at which the gradients were there, for a pilot; None: the beginning of the step.
            given: the gradients themselves, where ``flat`` is a copy of them in another dtype: if nothing of them is
                compressed, the mean is made of these, as DDP makes it, and ``flat`` is a copy of that.
            uses: the uses of parameters that may be unused, by their place in ``params``: uint8 of one element, the
                same on all ranks. What is not ``USED`` gets zero, and all that is kept for it stays as it was. The kept
                tensors of these parameters are copied.

        Raises:
            ConfigError: ``flat`` is not of this form, or no step was begun.
        """
        self._check(flat, params)
        flat = ordinary(flat)
        if not self._opened:
            self.open(first=[name for name, _ in params])
        run = self.pilot.before(flat, params, ready) if self.pilot is not None else None
        if given is not None and self._whole(params, given.dtype):
            flat.copy_(self.mean(given))
            if self.pilot is not None:
                self.pilot.after(flat, run)
            return
        self._count_nonzeros(flat, params)
        plan = self.plan(params)
        # Only now, because the pilot may just have given the parameters other methods, and so other tensors.
        put_back = self._set_aside(flat, params, uses) if uses else None
        self.remember(plan.names if self.skips_steps else ())
        drained = self._drain(flat, params) if self._draining else []
        self.counters.dense_bytes += 2 * (self.channel.world - 1) * flat.numel() * itemsize // self.channel.world
        key = Key(seed=self.seed, step=self.step, rank=self.channel.rank)
        warm = self.step <= self.policy.start_after
        compare = self._measure(flat, plan) if not warm else None
        moving = [each for each in plan.moving if warm or each.always]
        for each in moving:
            each.memory.compensate(each.of(flat), each.kept)
        uncompressed = DenseSession([(0, plan.numel)], self.channel, self.device) if warm else plan.dense
        dense = uncompressed.begin(flat)
        told = [session.run(flat, key, dense) for session in plan.sessions if not warm]
        for each in moving:
            each.memory.update(each.of(flat), each.kept, dense())
        # The flag of a session covers the parameters that travel dense.
        told = told or [dense()]
        self._bad += told
        kept = {params[i][0]: use == PENDING for i, use in (uses or {}).items()}
        self._drained += [(name, each | kept[name] if name in kept else each) for name in drained for each in told]
        if compare is not None:
            compare(flat, 0, 1.0)
        if put_back is not None:
            put_back()
        if self.pilot is not None:
            self.pilot.after(flat, run)

    def _count_nonzeros(self, flat: Tensor, params: Sequence[Named]) -> None:
        """Count what is not zero in each matrix once, on the device: nobody waits for it."""
        if not params or params[-1][0] in self._nonzeros:
            return
        parts = torch.split(flat, [torch.Size(shape).numel() for _, shape in params])
        matrices = [part for (_, shape), part in zip(params, parts, strict=True) if len(shape) > 1]
        # The zeroth norm is the number of elements that are not zero.
        counts = iter(torch._foreach_norm(matrices, 0) if matrices else ())
        for (name, shape), part in zip(params, parts, strict=True):
            self._nonzeros.setdefault(name, (part.numel(), next(counts) if len(shape) > 1 else None))

    def zeros(self) -> dict[str, float] | None:
        """Return the share of zeros, in [0, 1), in what this rank gave first for each matrix; it waits for the device.

        A matrix of nothing but zeros is left out: it tells nothing, because behind a layer that begins with zeros all
        gradients are zero at first. None: nothing was exchanged yet but what was averaged as it is.
        """
        if not self._nonzeros:
            return None
        counted = {name: (numel, count) for name, (numel, count) in self._nonzeros.items() if count is not None}
        counts = torch.stack([count for _, count in counted.values()]).tolist() if counted else []
        return {name: 1 - n / numel for (name, (numel, _)), n in zip(counted.items(), counts, strict=True) if n}

    def _whole(self, params: Sequence[Named], dtype: torch.dtype) -> bool:
        """Return whether a bucket is averaged as it is: none of it is compressed, measured, or waits."""
        own = any(name in self.assigned or name in self._draining for name, _ in params)
        return self._summed and self.second_moment is None and not own and self.compressor.sums_in(dtype)

    def plain(self, dtype: torch.dtype) -> bool:
        """Return whether whole buckets of this dtype may be averaged in place, because ``run`` gives the exact mean.

        So it is where the method sends the gradients as they are, and nothing is kept of them, measured, or waiting.
        """
        watched = self.pilot is not None or self.second_moment is not None
        waits = bool(self.assigned or self._draining)
        return self._summed and not watched and not waits and self.compressor.sums_in(dtype)

    @ordinary_modes()
    def begin_mean(self, bucket: Tensor) -> Future[Tensor]:
        """Start to replace a bucket by its mean, if ``plain`` or if no method takes it; nothing waits, and several may
        be under way.

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
        self.channel.settle()
        return mean.wait()

    def watched(self) -> Callable[[Tensor], None]:
        """Return a function that counts the step as not finite if a mean is not; any thread may call it, and it keeps
        nothing alive.
        """
        reference = weakref.ref(self)

        def arrived(mean: Tensor) -> None:
            exchange, bad = reference(), nonfinite(mean)
            # Of a mean on the CPU it is known at once, and nearly all are finite.
            if exchange is not None and (mean.device.type != "cpu" or bool(bad)):
                exchange.note(bad)

        return arrived

    def _drain(self, flat: Tensor, params: Sequence[Named]) -> list[str]:
        """Add the residuals of an earlier method to gradients; return the names that are complete now."""
        waits, found, lo = self.residuals.worker["residual"], [], 0
        for name, shape in params:
            numel = torch.Size(shape).numel()
            if name in self._draining:
                flat[lo : lo + numel].add_(read(waits[name])[:numel])
                found.append(name)
            lo += numel
        return found

    def _set_aside(self, flat: Tensor, params: Sequence[Named], uses: Mapping[int, Tensor]) -> Callable[[], None]:
        """Copy what is kept for parameters that may be unused; return the function that puts it back where they are."""
        copies = {i: [(each, each.clone()) for each in self.residuals.tensors_of(params[i][0])] for i in uses}

        def put_back() -> None:
            views = torch.split(flat, [torch.Size(shape).numel() for _, shape in params])
            for i, use in uses.items():
                unused = use != USED
                views[i].masked_fill_(unused, 0.0)
                for tensor, copy in copies[i]:
                    torch.where(unused, copy, tensor, out=tensor)

        return put_back

    def note_pending(self, uses: Tensor, names: Mapping[int, str]) -> None:
        """Set the use of parameters without a gradient to ``PENDING`` where something waits for them on this rank.

        Only a pilot leaves methods for others that keep nothing, so without one nothing is looked at.

        Args:
            uses: uint8, changed in place.
            names: names of these parameters, by their place in ``uses``.
        """
        for i, name in names.items() if self.pilot is not None else ():
            for tensor in self.residuals.tensors_of(name):
                uses[i] = torch.maximum(uses[i], read(tensor).any().to(torch.uint8) * PENDING)

    def _end_draining(self, spoilt: Tensor) -> None:
        """Forget residuals that were sent, unless their step does not count."""
        drained, self._drained = self._drained, []
        skipped = self.skips_steps and bool(spoilt)
        lost = {name for name, bad in drained if skipped or bool(bad)}
        for name in {name for name, _ in drained} - lost:
            del self.residuals.worker["residual"][name]
            self._draining.discard(name)

    def _measure(self, flat: Tensor, plan: Plan) -> Callable[[Tensor, int, float], None] | None:
        """Start an uncompressed average of a sample, in a step that is measured; return the function that compares the
        result.
        """
        moment = self.second_moment
        if moment is None or not plan.units or not moment.due(self.step):
            return None
        return moment.begin(flat, [(unit.lo, unit.lo + unit.numel) for unit in plan.units], self.step, self.channel)

    def any_rank(self, flags: Tensor) -> None:
        """Replace each flag by the largest of all ranks', for facts that all must know before a bucket is exchanged.

        Args:
            flags: uint8, as many on all ranks.
        """
        self.open()
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
            self.counters.dense_bytes += 2 * (self.channel.world - 1) * flat.nbytes // self.channel.world
        bad = DenseSession([(0, flat.numel())], self.channel, self.device).begin(flat)()
        self._bad.append(bad)
        return bad

    def state_dict(self) -> dict[str, Any]:
        """Return all that this rank must save to continue bit for bit: memories, states of the methods, and the step.

        Plain dicts, numbers and tensors, below the rank's number; the tensors are those in use.
        """
        self.end_step()
        state = checkpoint.state_of(self.channel.world, self.channel.rank, self.step, self.residuals.state_dict())
        moment = {} if self.second_moment is None else {"second_moment": self.second_moment.state_dict()}
        pilot = {} if self.pilot is None else {"auto": json.dumps(self.pilot.state_dict())}
        return {**state, "method": self.method(), **moment, **pilot}

    def method(self) -> str:
        """The methods that left residuals, as JSON: the main compressor and its memory."""
        memory = self.memory_for(self.compressor)
        config = {"compressor": self.compressor.to_config(), "memory": memory.to_config()}
        return json.dumps(config, sort_keys=True, default=plain)

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
            state: state of this rank, or the states of all ranks merged.
            on_resize: treatment of a state of another number of ranks. "reshard": the mean of the residuals, which is
                what waits of the mean update, is kept, for which the states of all ranks are needed; "reset": only the
                step is taken.
            sizes: elements of each parameter, frozen ones among them, to be compared with the state's.
            parts: equal parts in which each is stored: its shards, where whole parameters are kept for sharded ones.
            fit: makes of the state the one that is loaded; what it raises, all ranks hear of.

        Raises:
            ConfigError: the state is of another number of ranks and ``on_resize`` is "error", is not complete, or has
                what this configuration would never send.
            GroupError: ranks were given states of different steps.
        """
        kept: list[Mapping[str, Any]] = []

        def describe() -> str:
            checkpoint.check_form(state)
            whole = state if fit is None else fit(state)
            checkpoint.check(whole, self.channel.world, on_resize)
            if self.pilot is not None:
                self.pilot.check_state(json.loads(state.get("auto", "{}")), sizes or ())
            here = (self.channel.rank, self.channel.world)
            kept.append(checkpoint.of_rank(whole, *here, on_resize, self.buffers("squared")))
            checkpoint.check_names(whole, self.buffers("buffers"), sizes, parts)
            told = {key: state[key] for key in ("world", "step")}
            if "buckets" in state:
                told["buckets"] = json.loads(state["buckets"])
            return json.dumps({"on_resize": on_resize, "state": told})

        agree(self.channel, "load_state_dict", describe, self.device)
        self.end_step()
        self._plans, self.epoch = {}, self.epoch + 1
        self.residuals.load_state_dict(kept[0])
        self.step, self._patience = state["step"], PATIENCE
        self._drained = []
        if self.pilot is not None:
            self.pilot.load_state_dict(json.loads(state.get("auto", "{}")))
        if self.second_moment is not None:
            self.second_moment.restart(self.step)
            # The noise in a mean depends on the number of ranks.
            if "second_moment" in state and state["world"] == self.channel.world:
                self.second_moment.load_state_dict(state["second_moment"])
        # The counters have measured the messages of this call, which belong to no step.
        self.counters.reset()
        self._nonfinite.zero_()
        before, now = state.get("method"), self.method()
        if before not in (None, now) and self.channel.rank == 0:
            log.warning("the state was saved with %s; this run goes on with %s, which sends what waits", before, now)

    def buffers(self, which: str) -> set[str]:
        """The union of an attribute, a list of names, over the memories of all compressors."""
        assigned = dict.fromkeys(compressor for compressor, _ in self.assigned.values())
        memories = [self.memory_for(each) for each in (self.compressor, *self.policy.overrides.values(), *assigned)]
        # A pilot's decisions come with a state, and what waits because of them.
        waits = {"residual"} if self.pilot is not None and which == "buffers" else set()
        return {name for memory in memories for name in getattr(memory, which)} | waits

    @ordinary_modes()
    def scale_residuals(self, factor: float, names: Container[str] | None = None) -> None:
        """Multiply all residuals: by the old learning rate over the new one, when the rate jumps.

        A residual is in the gradient's unit, so what it holds of old gradients is applied with the rate of the step in
        which it is sent at last. Scaled, it is applied with the rate that it was meant for.

        Args:
            factor: a finite number > 0, the same on all ranks.
            names: names of the parameters; None: all.

        Raises:
            ConfigError: the factor is outside its range.
        """
        require(is_float32(factor) and factor > 0, "factor", "a finite number > 0", factor)
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
        self.end_step()
        self.residuals.rescale(factor)

    def note(self, bad: Tensor) -> None:
        """Count the step as not finite if ``bad``; for failures after ``run``."""
        self._bad.append(bad)

    def count_nonfinite(self, steps: int) -> None:
        """Count steps whose gradients were not finite on another rank, which this one has heard of later."""
        self._nonfinite += steps

    def metrics(self) -> dict[str, Any]:
        """Return counters since the start or since a state was loaded, and the norm of this rank's residuals."""
        current = list(self._bad)
        nonfinite = int(self._nonfinite) + bool(current and torch.stack(current).any())
        counted = {**self.counters.as_dict(), "steps": self.step, "nonfinite_steps": nonfinite}
        moment = {} if self.second_moment is None else {"rate_factor": self.second_moment.factor}
        pilot = {} if self.pilot is None else {"auto": self.pilot.metrics()}
        return {**counted, "residual_norm": self.residuals.norm(), **moment, **pilot}

    def _check(self, flat: Tensor, params: Sequence[Named]) -> None:
        require(self.step > 0, "run", "called after begin_step", Verbatim("a call before it"))
        known = self._known(params)
        numel = sum(torch.Size(shape).numel() for _, shape in params) if known is None else known.numel
        fits = flat.dtype == torch.float32 and flat.is_contiguous() and flat.shape == (numel,)
        form = f"contiguous float32 of shape ({numel},), as params say"
        require(fits, "flat", form, Verbatim(f"{flat.dtype} of shape {tuple(flat.shape)}"))

    def plan(self, params: Sequence[Named]) -> Plan:
        """Find or make the plan of a bucket for the compressor of this step; all ranks must call it alike."""
        main = self.policy.at(self.step - 1, self.compressor)
        plan = self._known(params)
        if plan is not None and (
            plan.main is main or plan.main == main or (same_choices(plan, main, self.policy) and try_retune(plan, main))
        ):
            return plan
        if plan is not None and self.second_moment is not None:
            self.second_moment.changed(self.step)
        self._forget([name for name, _ in params])
        plan = self._plans[first_of(params)] = self._build(params, main)
        return plan

    def _known(self, params: Sequence[Named]) -> Plan | None:
        """Find the plan that was made for these parameters, of whatever compressor."""
        plan = self._plans.get(first_of(params))
        return plan if plan is not None and plan.params == tuple(params) else None

    def forget_plans(self) -> None:
        """Make new plans in the next step; kept tensors stay."""
        self.epoch += 1
        if self.second_moment is not None:
            self.second_moment.restart(self.step)
        for plan in list(self._plans.values()):
            self._forget(plan.names)

    def _forget(self, names: Sequence[str]) -> None:
        """Drop the plans that share a parameter with ``names``, because the buckets were rebuilt or a size changed."""
        gone = [first for first, plan in self._plans.items() if not set(plan.names).isdisjoint(names)]
        for first in gone:
            self.residuals.retire(self._plans.pop(first).names)

    def _build(self, params: Sequence[Named], main: Compressor) -> Plan:
        main.check_world(self.channel.world)  # A schedule may have passed what fits, in a step that was not tried.
        units, dense, numel = grouped(params, partial(self.main_of, main=main), self.policy, self.memory_for)
        site = Site(self.channel, self.device, self.residuals)
        groups: dict[object, list[Unit]] = {}
        for unit in units:
            strategy = self._strategy_of(unit)
            alone = id(unit.compressor) if strategy.sums else None
            groups.setdefault((strategy.name, alone), []).append(unit)
        sessions = [self._strategy_of(group[0]).plan(group, site) for group in groups.values()]
        advised = [self.residuals.states[unit.name] for unit in units if unit.compressor.advice]
        session = self._dense_session(dense, advised, sessions)
        return Plan(
            tuple(params), main, units, session, sessions, numel, list(joined(self._moving(params, main, units)))
        )

    def _dense_session(
        self, ranges: Sequence[tuple[int, int]], advised: Sequence[State], sessions: Sequence[Session]
    ) -> DenseSession:
        """The session for uncompressed parameters: between two ranks with the payloads, which takes as many bytes."""
        numel = sum(hi - lo for lo, hi in ranges) + sum(state["advice"].numel() for state in advised)
        carried = len(sessions) == 1 and is_carried(numel, self.channel.world)
        rows = sessions[0].carry(numel) if carried else None
        if rows is None:
            return DenseSession(ranges, self.channel, self.device, advised)
        return CarriedDense(ranges, self.channel, self.device, advised, rows)

    def _strategy_of(self, unit: Unit) -> Strategy:
        compressor, strategy = self.assigned.get(unit.members[0][0], (None, None))
        return (
            strategy if strategy is not None and compressor is unit.compressor else self.strategy_for(unit.compressor)
        )

    def _moving(self, params: Sequence[Named], main: Compressor, units: Sequence[Unit]) -> list[Moving]:
        """The parameters whose memories have work to do although they travel dense: in the warm-up, or always."""
        compressed, lo = {name for unit in units for name, _ in unit.members}, 0
        length, moving, alone = sum(torch.Size(shape).numel() for _, shape in params), [], []
        for name, shape in params:
            meant, numel = self.policy.meant(name, self.main_of(name, main)), torch.Size(shape).numel()
            memory = self.memory_for(meant).dense
            if memory is not None and name in compressed:
                kept = {buffer: self.residuals.worker[buffer][name] for buffer in memory.buffers}
                moving.append(Moving(memory, kept, Places(length, [lo], [numel]), always=False))
            elif memory is not None:
                alone.append(Unit(((name, numel),), (numel,), lo, Identity(), memory))
            lo += numel
        for unit, own in zip(alone, self.residuals.keep_all(alone) if alone else [], strict=True):
            moving.append(Moving(unit.memory, own, Places(length, [unit.lo], [unit.numel]), always=True))
        return moving
