"""Base of both forms of FSDP: one module's gradients, divided by rows, each part sent to its owner."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.auto.shared_link import NO_GATHERS, Gathers, WeightControl
from gradwire.auto.step_record import Moment, moment
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.bf16 import BF16
from gradwire.engine.checkpoint import OnResize
from gradwire.engine.methods import Methods
from gradwire.engine.owner_plan import OwnerPlan, check_method, check_methods, make_owner_plan, wanted_of
from gradwire.engine.part import nonfinite
from gradwire.engine.shards import Sharded
from gradwire.errors import ConfigError, require
from gradwire.frontends._background import WAITING, Background
from gradwire.frontends.optimizer_watch import follow_steps, parameters_of
from gradwire.frontends.ownership import is_sharded
from gradwire.frontends.resharding import of_shard, recut, repadded
from gradwire.frontends.setup import backend_of, kind_of
from gradwire.frontends.state_units import ExchangeState, Scratch
from gradwire.modes import ordinary_modes
from gradwire.notices import log
from gradwire.transport.channel import Channel

__all__ = ["ReduceScatter", "ShardedState", "check_size", "multiplier", "not_sharded"]


class ShardedState(ExchangeState):
    """Base of the states of sharded models; they set the attributes of ``ExchangeState``.

    Where shards are averaged over replicas, they set ``shard``, this rank's, and ``shards``, how many there are; else
    that is 0, and every rank keeps residuals of whole parameters, or of its part of them where tensor parallelism has
    cut them into ``tensor_parts`` before.
    """

    def __init__(self) -> None:
        self.shard, self.shards, self.closed = 0, 0, False
        self.tensor_part, self.tensor_parts = 0, 1
        self.several = False
        self.cuts: dict[str, Sharded] = {}
        self._seen: set[str] = set()
        self._graph, self._used = -1, False
        self._ids: frozenset[int] = frozenset()
        self._ours: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.scratch, self.background = Scratch(), Background()
        self.awaited = False
        """True once the thread that computes had to wait for a reduction."""
        self.sizes: dict[str, int] = {}
        self.uncompressed: set[str] = set()
        """The names of parameters whose gradients no method takes; FSDP itself reduces these."""

    def follow_steps(self, params: Iterable[Tensor]) -> None:
        """Hear of the steps of the optimizers of these parameters."""
        self._ids = frozenset(map(id, params))
        follow_steps(self)

    def stepped(self, optimizer: Optimizer) -> None:
        """Note that an optimizer, which may be of these parameters, has made a step."""
        if optimizer not in self._ours:
            if self._ids.isdisjoint(map(id, parameters_of(optimizer))):
                return  # Not noted: it may get parameters of this model later.
            self._ours.add(optimizer)
        self._used = True

    def begins(self, names: Collection[str]) -> bool:
        """Return whether the turn of these parameters of a module, which comes now, begins a step.

        So it is where they had their turn in this step. And in another backward pass after an optimizer has stepped, or
        the loss scale has changed: the pass before may have been of other modules, as those of a GAN.
        """
        if not self._seen or not self._seen.isdisjoint(names):
            return True
        another = torch._C._current_graph_task_id() != self._graph
        return another and (self._used or self.units.rescaled(self.exchange.device))

    def begin(self, names: Collection[str]) -> None:
        """Begin the turn of these parameters of a module."""
        require(
            not self.closed,
            "state of the model",
            "open when gradients are reduced: compress the model anew after state.close()",
            "a closed one",
        )
        if self.begins(names):
            self._used = False
            self._seen.clear()
            # The exchange is one thread's at a time, and the jobs of the step before may still use it.
            self.background.finish()
            if self.dropped is not None:
                # Before this pass adds to any gradient.
                self.dropped.look()
                self.dropped.at_the_end_of_this_pass()
            self.exchange.begin_step()
            self.exchange.open()
            self.units.follow(self.exchange, *self.units.read())
        self._seen |= set(names)
        self._graph = torch._C._current_graph_task_id()

    def check(self, methods: Methods) -> None:
        super().check(methods)
        if not self.shards:
            check_methods(methods)

    def check_scatter(self) -> None:
        """Refuse methods that a reduce-scatter cannot carry, at set-up."""
        try:
            check_methods(self.exchange.methods)
        except ConfigError:
            # The refusal is raised on all ranks, and the parameters may be given to another exchange.
            self._give_back()
            raise

    def steer(self, *, one_mesh: bool, weights: WeightControl | None = None) -> None:
        """Tell the controller, if there is one, that gradients are reduced to their owners.

        Where modules lie on several meshes not all ranks see the same buckets, and cannot decide together: bfloat16 is
        what they take.

        Args:
            one_mesh: true where all modules lie on one mesh.
            weights: part that gathers the weights; None: nobody watches it.
        """
        exchange = self.exchange
        if exchange.controller is None:
            return
        if one_mesh:
            try:
                exchange.controller.scatter(partial(check_method, exchange.methods), self.buffers, weights)
            except ConfigError:
                # The caller gets no state that could be closed, so the group is given back here.
                self._give_back()
                raise
            return
        exchange.change(exchange.methods.changed(BF16()))
        if exchange.channel.rank == 0:
            log.warning("auto cannot decide for a model whose modules are sharded over different ranks: it is bf16")

    def buffers(self) -> int | None:
        """The number of reductions that may be under way while gradients are computed, for a controller."""
        return WAITING if self.exchange.device.type == "cpu" else None

    def gathers(self) -> Gathers:
        """Return what was gathered since the last call, and the pauses for it, for the controller."""
        return NO_GATHERS

    def close(self) -> None:
        """Stop exchanging: the model must be compressed anew before the next backward pass."""
        self.between_steps("close")
        self.closed = True
        # Before the exchange is released, which the thread may still use.
        self.background.close()
        self._give_back()

    def state_dict(self) -> dict[str, Any]:
        """Return the same state as DDP's; between replicas each rank's is that of its own shard."""
        # A reduction that is under way changes what is saved.
        self.background.finish()
        state = super().state_dict()
        if not self.shards and self.tensor_parts == 1:
            return state
        return of_shard(state, self.place, self.places, self.tensor_parts)

    def load_state_dict(self, state: Mapping[str, Any], on_resize: OnResize = "error") -> None:
        # A backward pass that failed has left reductions under way, which would write to what is loaded.
        self.background.finish()
        super().load_state_dict(state, on_resize)

    def change(self, compressor: Any, **options: Any) -> None:
        # As before ``load_state_dict``; and two threads must not talk on one channel.
        self.background.finish()
        super().change(compressor, **options)

    @property
    def place(self) -> int:
        """The place in a checkpoint of the state of this rank's line of ranks."""
        return self.tensor_part * max(self.shards, 1) + self.shard

    @property
    def places(self) -> int:
        """The number of lines of ranks that have a place in a checkpoint."""
        return self.tensor_parts * max(self.shards, 1)

    @property
    def stored_parts(self) -> int:
        return 1 if self.shards else self.exchange.channel.world

    def fitted(self, state: Mapping[str, Any], on_resize: OnResize) -> Mapping[str, Any]:
        """The part of a state of other shards that concerns this rank's shard."""
        if self.shards or self.tensor_parts > 1:
            state = recut(state, self.place, self.places, self.cuts, on_resize, self.tensor_parts)
        if self.shards:
            return state
        require("parts" not in state, "state", "of a model without replicate=", sorted(map(str, state)))
        if on_resize == "error" or state.get("world") == self.exchange.channel.world or "ranks" not in state:
            return state
        if self.several and on_resize == "reshard":
            raise ConfigError(
                "on_resize must be 'reset' for a model on several meshes, whose ranks keep what belongs to other "
                "parameters under one name, got 'reshard'"
            )
        return repadded(state, self.cuts) if on_resize == "reshard" else {**state, "ranks": {}}


class ReduceScatter:
    """A function that FSDP calls in place of ``reduce_scatter_tensor``, for one module.

    Args:
        trained: gives the parameters of the module whose gradients are reduced now, in the order of FSDP's buffer.
        later: gives the number by which FSDP divides what it reduced in this dtype.
        channel: channel over the ranks of the module's mesh, where they are fewer than those of the exchange; it is
            used after these have compared what they are about to do.
        own: the framework's reduce-scatter, which is called where nothing is compressed; None: none is called. Where
            no method takes the module's gradients there must be one.
        unread: returns whether FSDP reads nothing of what it reduced in this dtype until the backward pass ends.
    """

    def __init__(
        self,
        state: ShardedState,
        trained: Callable[[], Sequence[Sharded]],
        later: Callable[[torch.dtype], float] = lambda _: 1.0,
        channel: Channel | None = None,
        own: Callable[[Tensor, Tensor, dist.ProcessGroup, Any], object] | None = None,
        unread: Callable[[torch.dtype], bool] = lambda _: False,
    ) -> None:
        self.state, self.trained, self.later, self.unread = state, trained, later, unread
        self.inner, self.own = channel, own
        self._ready: tuple[int, Moment] = (-1, None)
        self._places: dict[str, dist.ProcessGroup] = {}
        self._plans: dict[tuple[str, ...], tuple[tuple[object, ...], OwnerPlan | None]] = {}

    @property
    def channel(self) -> Channel:
        """The channel over which the module's gradients are reduced."""
        return self.inner if self.inner is not None else self.state.exchange.channel

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate memory for FSDP's gradients.

        FSDP asks for it as soon as they were computed, in the stream that does so, and for the result afterwards.
        """
        graph = torch._C._current_graph_task_id()
        if self.state.exchange.controller is not None and (self._ready[1] is None or self._ready[0] != graph):
            self._ready = graph, moment(device)
        return torch.empty(*size, dtype=dtype, device=device)

    @ordinary_modes()
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        """Sum this rank's part, and multiply it as ``op`` says: by 1, by 1 / ranks, or by a factor of its own."""
        state, exchange, channel = self.state, self.state.exchange, self.channel
        world = channel.world
        scale, shards = multiplier(op, world), self.trained()
        check_size(input_tensor, sum(each.padded for each in shards))
        names = [each.name for each in shards]
        state.begin(names)
        if names and names[0] in state.uncompressed:  # FSDP makes a module of parameters of one dtype.
            self._reduce_uncompressed(output_tensor, input_tensor, self._group(input_tensor, group), op)
            return
        state.units.follow_divisor(exchange, names, self.later(input_tensor.dtype) / (scale * world))
        if channel is not exchange.channel:
            state.background.finish()
            # The module's own channel makes no comparison, so that of all ranks is made before its first message.
            exchange.channel.settle()
        exchange.counters.dense_bytes += channel.scattered(input_tensor.nbytes)
        where = group if self.own is None else self._group(input_tensor, group)
        overlaps, watched = self._may_overlap(input_tensor, apart=where is not channel.group), None
        if exchange.controller is not None:
            # Uncompressed gradients are reduced by FSDP itself, in their own dtype, or else by a session in float32.
            itself = self.own is not None and not exchange.rollback.skips_steps
            itemsize = input_tensor.itemsize if itself else 4
            # In most steps only times are wanted, and 16 bits need no copy in 32.
            flat = state.scratch.float32(input_tensor) if exchange.controller.reads else input_tensor
            watched = self._watch(flat, shards, itemsize, overlaps=overlaps)
            # A candidate is tried on this thread, and two threads must not use one exchange.
            overlaps = overlaps and not exchange.controller.probing
        plan = self._current(shards)
        if plan is not None:
            prepare = partial(self._prepared, plan, input_tensor, output_tensor, scale)
            # Where a thread reduces, it finds prepared what this one must see in order.
            reduce = prepare() if overlaps else lambda: prepare()()
        else:
            overlaps = overlaps and where is channel.group
            reduce = partial(self._leave_to_framework, output_tensor, input_tensor, where, op)

        def job() -> Tensor:
            if exchange.controller is not None:
                exchange.controller.started(watched)
            reduce()
            if exchange.controller is not None:
                mean = output_tensor if watched is None or watched.own is None else output_tensor.float()
                exchange.controller.after(mean, watched, scale * world)
            return output_tensor

        if overlaps:
            state.background.start(job)
        else:
            # A reduction on this thread must not overtake those that were started before it.
            state.background.finish()
            job()

    def _group(self, given: Tensor, group: dist.ProcessGroup) -> dist.ProcessGroup:
        """The group on which FSDP reduces what is not compressed, the same on all ranks: on a CPU the exchange's if it
        has the same backend, because a thread may do so, and what two threads start on one group has any order.
        """
        ours = self.channel.group
        if given.device.type != "cpu" or self.inner is not None or ours is None:
            return group
        if group.group_name not in self._places:
            same = backend_of(ours, given.device) == backend_of(group, given.device)
            self._places[group.group_name] = ours if same else group
        return self._places[group.group_name]

    def _leave_to_framework(self, wanted: Tensor, given: Tensor, group: dist.ProcessGroup, op: Any) -> None:
        """Let FSDP reduce by itself on this group."""
        assert self.own is not None
        reduce, ours = partial(self.own, wanted, given, group, op), group is self.channel.group
        self.channel.run_scatter(reduce, given.nbytes, own=ours)
        exchange, bad = self.state.exchange, nonfinite(wanted)
        if exchange.rollback.skips_steps:
            # The value reaches one owner alone, and all ranks undo the step or none.
            anywhere = bad.to(torch.uint8).view(1)
            exchange.any_rank(anywhere)
            bad = anywhere[0].bool()
        exchange.rollback.note([bad])

    def _reduce_uncompressed(self, wanted: Tensor, given: Tensor, group: dist.ProcessGroup, op: Any) -> None:
        """Let FSDP reduce what no method takes, in its own dtype."""
        exchange = self.state.exchange
        self.state.background.finish()
        exchange.channel.settle()
        exchange.counters.dense_bytes += self.channel.scattered(given.nbytes)
        self._leave_to_framework(wanted, given, group, op)

    def _prepared(self, plan: OwnerPlan, given: Tensor, wanted: Tensor, scale: float) -> Callable[[], None]:
        """Prepare a function that puts ``scale`` times the sum of this rank's part of what is given into what is
        wanted, in whatever dtype they are.
        """
        exchange = self.state.exchange
        out = wanted if wanted.dtype == torch.float32 else torch.empty_like(wanted, dtype=torch.float32)
        run = plan.prepare(self.state.scratch.float32(given), out, scale, exchange)

        def reduce() -> None:
            run()
            if out is not wanted:
                # A mean that float32 holds may be infinite in 16 bits.
                exchange.rollback.note([nonfinite(wanted.copy_(out))])

        return reduce

    def _may_overlap(self, given: Tensor, *, apart: bool) -> bool:
        """Return whether another thread may reduce: on a CPU where nobody reads the result before the backward pass
        ends. On an accelerator nobody waits, and a stream keeps the order.

        A controller compares steps that are alike: once one reduction was awaited, all are.

        Args:
            apart: true where FSDP's own reductions are on another group, so that this thread makes them.
        """
        state, watched = self.state, self.state.exchange.controller is not None
        simple = state.exchange.second_moment is None and self.inner is None and not (watched and apart)
        own = given.device.type == "cpu" and given.dtype == torch.float32 and not given.is_inference()
        may = simple and own and self.unread(given.dtype) and Background.possible()
        state.awaited = state.awaited or (watched and not may)
        return may and not (watched and state.awaited)

    def _watch(self, flat: Tensor, shards: Sequence[Sharded], itemsize: int, *, overlaps: bool) -> Any:
        """Let the controller observe the part of the first owner, which is like the others, and that of this rank.

        Returns:
            The controller's record.
        """
        controller, part = self.state.exchange.controller, sum(each.chunk for each in shards)
        named = [(each.name, tuple(each.shape)) for each in shards]
        (_, ready), self._ready = self._ready, (-1, None)
        rank, held = self.channel.rank, self.state.background.held if flat.device.type == "cpu" else None
        own, blocking = flat[rank * part : (rank + 1) * part], not (overlaps or self.channel.is_nccl)
        assert controller is not None
        gathers = self.state.gathers()
        return controller.before(flat[:part], named, ready, own, itemsize, held, blocking=blocking, gathers=gathers)

    def _current(self, shards: Sequence[Sharded]) -> OwnerPlan | None:
        """The plan for the compressor of this step, over what is kept now; None: the framework's own reduction."""
        exchange, names = self.state.exchange, tuple(each.name for each in shards)
        known, wanted = self._plans.get(names), wanted_of(exchange, names)
        if known is None or known[0] != wanted:
            if known is not None and known[0][0] != wanted[0] and exchange.second_moment is not None:
                exchange.second_moment.changed(exchange.step)
            # The residual of a parameter has one place, that of the newest plan.
            self._plans = {each: made for each, made in self._plans.items() if set(each).isdisjoint(names)}
            main = cast("Compressor | None", wanted[0])
            # Two threads must not talk on one channel.
            quiet = self.state.background.finish
            made = make_owner_plan(shards, main, exchange, self.channel, quiet, own=self.own is not None)
            self._plans[names] = wanted, made
        return self._plans[names][1]


def not_sharded(model: object, compressor: object, allowed: str, first: str, given: str, other: str) -> ConfigError:
    """Say what to do with an object that is not sharded in the way that a call takes.

    Args:
        allowed: kind of module that the call takes.
        first: advice for a module that is not sharded at all.
        given: advice for a class.
        other: advice for a module that the other FSDP has sharded.
    """
    params = list(model.parameters()) if isinstance(model, nn.Module) else []
    remedy = f"{first}, or use gradwire.compress_ddp or compress_optimizer"
    if isinstance(compressor, nn.Module):
        remedy = "they are the other way round"
    elif isinstance(model, type):
        remedy = given
    elif any(map(is_sharded, params)):
        remedy = other
    elif isinstance(model, nn.parallel.DistributedDataParallel):
        remedy = "for DistributedDataParallel use gradwire.compress_ddp"
    return ConfigError(f"model must be {allowed}, got {kind_of(model)}; {remedy}")


def multiplier(op: Any, world: int) -> float:
    """The factor by which a reduction multiplies the sum over the ranks.

    Raises:
        ConfigError: the reduction is neither a sum nor a mean.
    """
    if op == dist.ReduceOp.SUM:
        return 1.0
    if op == dist.ReduceOp.AVG:
        return 1.0 / world
    # FSDP asks for it where set_gradient_divide_factor was called.
    scaled = op == dist.ReduceOp.PREMUL_SUM
    require(scaled, "operation of FSDP's reduce-scatter", "SUM, AVG or PREMUL_SUM", str(op))
    return float(op.__getstate__()[1])


def check_size(tensor: Tensor, numel: int) -> None:
    """Refuse the gradients of only some of a module's parameters, because it is not known of which."""
    if tensor.numel() != numel:
        raise ConfigError(
            f"gradients of a module must have {numel} elements, got {tensor.numel()}: parameters were unused; call "
            "model.set_reduce_scatter_unused_params(True), which torch 2.13 has, and freeze parameters only "
            "between two steps"
        )
