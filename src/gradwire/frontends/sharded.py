"""Base of both forms of FSDP: one module's gradients, divided by rows, each part sent to its owner."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.auto.step_record import Moment, moment
from gradwire.comm.base import Site, Strategy
from gradwire.comm.hierarchical import Hierarchical
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.compressors.casts.bf16 import BF16
from gradwire.compressors.casts.none import Identity
from gradwire.errors import ConfigError, require
from gradwire.exchange.checkpoint import OnResize
from gradwire.exchange.exchange import Exchange
from gradwire.frontends._background import WAITING, Background
from gradwire.frontends._dropped import DroppedGradients
from gradwire.frontends._scatter import HostScatterSession, ScatterSession
from gradwire.frontends.ownership import release
from gradwire.frontends.resharding import Sharded, of_shard, recut, repadded
from gradwire.frontends.setup import backend_of
from gradwire.frontends.state_units import ExchangeState, Scratch
from gradwire.group.channel import Channel
from gradwire.group.hosts import Hosts, hosts_of
from gradwire.group.part import Piece, Unit, nonfinite
from gradwire.kernels.stored import part_of, shaped
from gradwire.memory.base import Memory
from gradwire.memory.none import NoMemory
from gradwire.modes import ordinary_modes
from gradwire.vocabulary import Key

__all__ = ["ReduceScatter", "ShardedState", "check_scatter", "check_size"]

log = logging.getLogger("gradwire")

AnyScatterSession = ScatterSession | HostScatterSession


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
        self.scratch, self.background = Scratch(), Background()
        self.awaited = False
        """True once the thread that computes had to wait for a reduction."""
        self.sizes: dict[str, int] = {}
        self.dropped: DroppedGradients | None = None
        self.uncompressed: set[str] = set()
        """The names of parameters whose gradients no method takes; FSDP itself reduces these."""

    def begin(self, names: Collection[str]) -> None:
        """Begin the turn of these parameters of a module; one that had its turn in this step begins the next."""
        require(
            not self.closed,
            "state of the model",
            "open when gradients are reduced: compress the model anew after state.close()",
            "a closed one",
        )
        if not self._seen.isdisjoint(names) or not self._seen:
            self._seen.clear()
            self.background.finish()
            if self.dropped is not None:
                self.dropped.look()
                self.dropped.at_the_end_of_this_pass()
            self.exchange.begin_step()
            self.exchange.open()
            self.units.follow(self.exchange, *self.units.read())
        self._seen |= set(names)

    def check_scatter(self) -> None:
        """Refuse methods that a reduce-scatter cannot carry, at set-up.

        Raises:
            ConfigError
        """
        try:
            check_scatter(self.exchange)
        except ConfigError:
            release(self.exchange)
            raise

    def steer(self, *, one_mesh: bool) -> None:
        """Tell the pilot, if there is one, that gradients are reduced to their owners.

        Where modules lie on several meshes not all ranks see the same buckets, and cannot decide together: bfloat16 is
        what they take.
        """
        exchange = self.exchange
        if exchange.pilot is None:
            return
        if one_mesh:
            try:
                exchange.pilot.scatter(partial(check_method, exchange), self.buffers)
            except ConfigError:
                release(exchange)
                raise
            return
        exchange.pilot = None
        exchange.choose(BF16())
        if exchange.channel.rank == 0:
            log.warning("auto cannot decide for a model whose modules are sharded over different ranks: it is bf16")

    def buffers(self) -> int | None:
        """The number of reductions that may be under way while gradients are computed, for a pilot."""
        return WAITING if self.exchange.device.type == "cpu" else None

    def stalls(self) -> tuple[tuple[Moment, Moment], ...]:
        """Return the pauses of the backward pass since the last call in which weights were gathered, for a pilot."""
        return ()

    def close(self) -> None:
        """Stop exchanging: the model must be compressed anew before the next backward pass."""
        self.between_steps("close")
        self.closed = True
        self.background.close()
        if self.dropped is not None:
            self.dropped.leave()
        self.stop_correcting()
        release(self.exchange)

    def state_dict(self) -> dict[str, Any]:
        """Return the same state as DDP's; between replicas each rank's is that of its own shard."""
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
        if self.shards:
            return recut(state, self.place, self.places, self.cuts, on_resize, self.tensor_parts)
        if self.tensor_parts > 1:
            state = recut(state, self.place, self.places, self.cuts, on_resize, self.tensor_parts)
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
        self.shards: Sequence[Sharded] = ()
        self._ready: tuple[int, Moment] = (-1, None)
        self._places: dict[str, dist.ProcessGroup] = {}
        self._made: dict[tuple[str, ...], tuple[tuple[object, ...], AnyScatterSession | None]] = {}

    @property
    def channel(self) -> Channel:
        """The channel over which the module's gradients are reduced."""
        return self.inner if self.inner is not None else self.state.exchange.channel

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate memory for FSDP's gradients.

        FSDP asks for it as soon as they were computed, in the stream that does so, and for the result afterwards.
        """
        graph = torch._C._current_graph_task_id()
        if self.state.exchange.pilot is not None and (self._ready[1] is None or self._ready[0] != graph):
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
            exchange.channel.settle()
        exchange.counters.dense_bytes += channel.scattered(input_tensor.nbytes)
        where = group if self.own is None else self._group(input_tensor, group)
        overlaps, watched = self._may_overlap(input_tensor, apart=where is not channel.group), None
        if exchange.pilot is not None:
            # Uncompressed gradients are reduced by FSDP itself, in their own dtype, or else by a session in float32.
            itself = self.own is not None and not exchange.skips_steps
            itemsize = input_tensor.itemsize if itself else 4
            watched = self._watch(state.scratch.float32(input_tensor), shards, itemsize, overlaps=overlaps)
            overlaps = overlaps and not exchange.pilot.probing
        session = self._current(shards)
        if session is not None:
            reduce = self._prepared(session, input_tensor, output_tensor, scale, overlaps=overlaps)
        else:
            overlaps = overlaps and where is channel.group
            reduce = partial(self._leave_to_framework, output_tensor, input_tensor, where, op)

        def job() -> Tensor:
            if exchange.pilot is not None:
                exchange.pilot.started(watched)
            reduce()
            if exchange.pilot is not None:
                exchange.pilot.after(output_tensor.float(), watched, scale * world)
            return output_tensor

        if overlaps:
            state.background.start(torch.no_grad()(job))
        else:
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
        if exchange.skips_steps:
            # The value reaches one owner alone, and all ranks take the step back or none.
            anywhere = bad.to(torch.uint8).view(1)
            exchange.any_rank(anywhere)
            bad = anywhere[0].bool()
        exchange.note(bad)

    def _reduce_uncompressed(self, wanted: Tensor, given: Tensor, group: dist.ProcessGroup, op: Any) -> None:
        """Let FSDP reduce what no method takes, in its own dtype."""
        exchange = self.state.exchange
        self.state.background.finish()
        exchange.channel.settle()
        exchange.counters.dense_bytes += self.channel.scattered(given.nbytes)
        self._leave_to_framework(wanted, given, group, op)

    def _prepared(
        self, session: AnyScatterSession, given: Tensor, wanted: Tensor, scale: float, *, overlaps: bool
    ) -> Callable[[], None]:
        """Prepare a function by which a session puts ``scale`` times the sum of this rank's part of what is given into
        what is wanted.

        Args:
            overlaps: true where the function is called on another thread.
        """
        exchange, channel = self.state.exchange, self.channel
        key = Key(seed=exchange.seed, step=exchange.step, rank=channel.rank)
        if not overlaps:
            return partial(self._exchange, session, given, wanted, key, scale)
        exchange.remember([each.name for each in self.shards])
        drained = self._drain(given)

        def run() -> None:
            bad = session.run(given, wanted, key, scale)
            exchange.note(bad)
            for name in drained:
                exchange.drained(name, bad)

        return run

    def _exchange(self, session: AnyScatterSession, given: Tensor, wanted: Tensor, key: Key, scale: float) -> None:
        """Let a session reduce at once, whatever the gradients' dtype is, and measure the noise of its code."""
        exchange, channel = self.state.exchange, self.channel
        flat = self.state.scratch.float32(given)
        out = wanted if wanted.dtype == torch.float32 else torch.empty_like(wanted, dtype=torch.float32)
        exchange.remember([each.name for each in self.shards])
        compare = self._measure(session, flat)
        drained = self._drain(flat)
        exchange.note(bad := session.run(flat, out, key, scale))
        for name in drained:
            exchange.drained(name, bad)
        if compare is not None:
            compare(out, exchange.channel.rank * out.numel(), scale * channel.world)
        if out is not wanted:
            exchange.note(nonfinite(wanted.copy_(out)))

    def _may_overlap(self, given: Tensor, *, apart: bool) -> bool:
        """Return whether another thread may reduce: on a CPU where nobody reads the result before the backward pass
        ends. On an accelerator nobody waits, and a stream keeps the order.

        A pilot compares steps that are alike: once one reduction was awaited, all are.

        Args:
            apart: true where FSDP's own reductions are on another group, so that this thread makes them.
        """
        state, watched = self.state, self.state.exchange.pilot is not None
        simple = state.exchange.second_moment is None and self.inner is None and not (watched and apart)
        own = given.device.type == "cpu" and given.dtype == torch.float32 and not given.is_inference()
        may = simple and own and self.unread(given.dtype) and Background.possible()
        state.awaited = state.awaited or (watched and not may)
        return may and not (watched and state.awaited)

    def _drain(self, flat: Tensor) -> list[str]:
        """Add to gradients what a method that was left has kept of them; the names of those that are complete now."""
        rows, lo, found = flat.view(self.channel.world, -1), 0, []
        for each in self.shards:
            if (waits := self.state.exchange.left_over(each.name)) is not None:
                rows[:, lo : lo + each.chunk].add_(each.taken(waits).view(self.channel.world, -1))
                found.append(each.name)
            lo += each.chunk
        return found

    def _watch(self, flat: Tensor, shards: Sequence[Sharded], itemsize: int, *, overlaps: bool) -> Any:
        """Let the pilot observe the part of the first owner, which is like the others, and that of this rank.

        Returns:
            The pilot's record.
        """
        pilot, part = self.state.exchange.pilot, sum(each.chunk for each in shards)
        named = [(each.name, tuple(each.shape)) for each in shards]
        (_, ready), self._ready = self._ready, (-1, None)
        rank, held = self.channel.rank, self.state.background.held if flat.device.type == "cpu" else None
        own, blocking = flat[rank * part : (rank + 1) * part], not (overlaps or self.channel.is_nccl)
        assert pilot is not None
        stalls = self.state.stalls()
        return pilot.before(flat[:part], named, ready, own, itemsize, held, blocking=blocking, stalls=stalls)

    def _measure(self, session: AnyScatterSession, flat: Tensor) -> Callable[[Tensor, int, float], None] | None:
        """Measure as ``Exchange`` does for whole gradients; a rank knows the result of its own part only."""
        exchange, moment = self.state.exchange, self.state.exchange.second_moment
        if moment is None or self.inner is not None or not moment.due(exchange.step):
            return None
        parts = [
            [(piece.lo, piece.lo + piece.numel) for piece in part.pieces if not piece.unit.compressor.identity]
            for part in session.parts
        ]
        each = len(parts[0])
        owned = slice(exchange.channel.rank * each, (exchange.channel.rank + 1) * each)
        spans = list(chain.from_iterable(parts))
        return moment.begin(flat, spans, exchange.step, exchange.channel, owned) if spans else None

    def _current(self, shards: Sequence[Sharded]) -> AnyScatterSession | None:
        """The session for the compressor of this step, over what is kept now; None: the framework's own reduction.

        A session for the main compressor None is that of the dense warm-up.
        """
        exchange, self.shards = self.state.exchange, shards
        warm = exchange.step <= exchange.policy.start_after
        main = None if warm else exchange.policy.at(exchange.step - 1, exchange.compressor)
        names = tuple(each.name for each in shards)
        waits = [name for name in names if exchange.left_over(name) is not None]
        known, wanted = self._made.get(names), (main, exchange.epoch, waits)
        if known is None or known[0] != wanted:
            if known is not None and known[0][0] != main and exchange.second_moment is not None:
                exchange.second_moment.changed(exchange.step)
            chosen = [self._chosen(each, main) for each in shards]
            plain = all(code.identity and memory.keeps_nothing for code, memory in chosen)
            # A value that is not finite reaches one owner alone then, and all ranks would have to take the step back.
            own = plain and not waits and self.own is not None and not exchange.skips_steps
            # The residual of a parameter has one place, that of the newest session.
            self._made = {each: made for each, made in self._made.items() if set(each).isdisjoint(names)}
            self._made[names] = wanted, None if own else self._session(chosen)
        return self._made[names][1]

    def _session(self, chosen: Sequence[tuple[Compressor, Memory]]) -> AnyScatterSession:
        site, pieces, hosts = site_of(self.state.exchange, self.channel), self._pieces(chosen), self._hosts(chosen)
        return ScatterSession(pieces, site) if hosts is None else HostScatterSession(pieces, site, hosts)

    def _hosts(self, chosen: Sequence[tuple[Compressor, Memory]]) -> Hosts | None:
        """The hosts that sum plainly, as it was decided for this module; None: every rank sends to each owner."""
        assigned = self.state.exchange.assigned
        together = all(each.name in assigned and is_of_hosts(assigned[each.name][1]) for each in self.shards)
        if not together or not all(memory.keeps_nothing for _, memory in chosen):
            return None
        # The first time ranks tell each other where they are, and two threads must not talk on one channel.
        self.state.background.finish()
        return hosts_of(self.channel, self.state.exchange.device)

    def _pieces(self, chosen: Sequence[tuple[Compressor, Memory]]) -> list[list[Piece]]:
        """Make a piece of every parameter for each owner, as they lie in FSDP's buffer."""
        exchange, lo = self.state.exchange, 0
        site, shards = site_of(exchange, self.channel), []
        rooms = [each.world * each.room(memory.form) for each, (_, memory) in zip(self.shards, chosen, strict=True)]
        kept = site.kept.keep_all(
            [
                Unit(((each.name, numel),), (numel,), 0, code, memory)
                for each, numel, (code, memory) in zip(self.shards, rooms, chosen, strict=True)
            ]
        )
        for owner in range(self.channel.world):
            pieces = []
            for each, (code, memory), flats in zip(self.shards, chosen, kept, strict=True):
                unit = Unit(((f"{each.name}#{owner}", each.chunk),), each.shape, lo, code, memory)
                begin = owner * each.room(memory.form)
                views = {
                    name: shaped(part_of(flat, begin, begin + each.chunk), each.shape) for name, flat in flats.items()
                }
                pieces.append(Piece(unit, memory, each.shape, lo, state=site.kept.remember(unit), kept=views))
                lo += each.chunk
            shards.append(pieces)
        return shards

    def _chosen(self, each: Sharded, main: Compressor | None) -> tuple[Compressor, Memory]:
        exchange = self.state.exchange
        main = None if main is None else exchange.main_of(each.name, main)
        code = exchange.policy.choose(each.name, each.shape, main) if main is not None else None
        if code is None or code.identity:
            meant = exchange.policy.meant(each.name, main or exchange.compressor)
            return Identity(), exchange.memory_for(meant).dense or NoMemory()
        return code, exchange.memory_for(code)


def is_of_hosts(strategy: Strategy) -> bool:
    return isinstance(strategy, Hierarchical)


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


def site_of(exchange: Exchange, channel: Channel) -> Site:
    return Site(channel, exchange.device, exchange.residuals)


def check_scatter(exchange: Exchange) -> None:
    """Refuse methods that cannot work in one message to each owner, and a strategy, which would have no effect.

    Raises:
        ConfigError
    """
    for each in (exchange.compressor, *exchange.policy.overrides.values()):
        check_method(exchange, each)
    named = exchange.strategy.name if exchange.strategy is not None else None
    allowed = (
        "left out, as the communicator of a recipe: gradients are reduced to their owners, in one message each; only "
        "between replicas can it be chosen"
    )
    require(named is None, "strategy", allowed, named)


def check_method(exchange: Exchange, compressor: Compressor) -> None:
    if isinstance(compressor, MultiRound) or not compressor.fixed_size:
        why = "is averaged in rounds" if isinstance(compressor, MultiRound) else "has a variable size"
        raise ConfigError(
            f"compressor must be of one message and fixed size for a reduce-scatter, got {compressor.name!r}, which "
            f"{why}; with hybrid sharding and replicate= every method can be used"
        )
    memory = exchange.memory_for(compressor)
    allowed = "one that keeps nothing of the mean for a reduce-scatter; with replicate= every memory can be used"
    require(not memory.keeps_mean, "memory", allowed, memory.name)


def check_size(tensor: Tensor, numel: int) -> None:
    """Refuse the gradients of only some of a module's parameters, because it is not known of which.

    Raises:
        ConfigError
    """
    if tensor.numel() != numel:
        raise ConfigError(
            f"gradients of a module must have {numel} elements, got {tensor.numel()}: parameters were unused; call "
            "model.set_reduce_scatter_unused_params(True), which torch 2.13 has, and freeze parameters only "
            "between two steps"
        )
