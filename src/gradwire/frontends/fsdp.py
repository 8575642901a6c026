"""Integration of FSDP2 (``fully_shard``): a compressed reduce-scatter, or a compressed all-reduce between replicas.

Invariants:
    * FSDP hands over the gradients of one module at a time, cut by rows into a part for each rank, in the order of the
      backward pass, which is the same on all ranks.
    * Residuals are kept by parameter, one rank's rows after the other's, padded to whole rows for each rank.
    * On a CPU a thread reduces while the backward pass goes on, if FSDP reads no result before that ends; otherwise a
      call returns when its result is there. On NCCL the reduction runs on the stream on which FSDP called it.
    * On a mesh of replicas and shards a module sees only the mesh of the shards while a state is open, and a hook
      averages between the replicas. The parameters lie on the whole mesh as before.

Why:
    FSDP averages between the replicas before it calls any hook, so nothing could be compressed there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire._short_traceback import short_traceback
from gradwire.auto.controller import AutoController
from gradwire.auto.shared_link import Gathers
from gradwire.auto.step_record import Moment
from gradwire.compressors.wrappers.ef21 import EF21
from gradwire.engine.checkpoint import OnResize, counted
from gradwire.engine.exchange import Exchange
from gradwire.engine.part import nonfinite
from gradwire.engine.plan import Named
from gradwire.engine.residual_store import used_here
from gradwire.engine.shards import Sharded
from gradwire.errors import ConfigError, require
from gradwire.frontends._dropped import DroppedGradients
from gradwire.frontends._gather_waits import GatherWaits
from gradwire.frontends._meshes import ANY_MESH, check_mesh, check_replicas, line_of, ranks_of, replicas_left_out
from gradwire.frontends._module_group import ModuleGroupBackward
from gradwire.frontends._rank_grid import InnerReduceScatter, RankGrid, agreed_along, cut_of, grid_of
from gradwire.frontends._weights import DifferenceGather, WeightGather, WeightSwitch, WeightWire, weight_code
from gradwire.frontends.ownership import Caller
from gradwire.frontends.setup import AUTO, kind_of, prepare, private_channel, refuse, share_start, uncompiled
from gradwire.frontends.sharded import ReduceScatter, ShardedState, check_size, not_sharded
from gradwire.frontends.state_units import Units
from gradwire.frontends.uncompressed import refuse_sparse, sparse_in
from gradwire.metrics import Metrics
from gradwire.modes import ordinary_modes
from gradwire.notices import log
from gradwire.transport.channel import Channel

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

__all__ = ["FSDPState", "compress_fsdp", "managed"]


CALLER = Caller("gradwire.compress_fsdp", "fsdp")

DROPPED = (
    "Exchange nothing that you drop: freeze the parameters with `model.requires_grad_(False)` for that forward and "
    "backward pass"
)

SHARD = "shard (the ranks of replicate= must hold the same rows)"
"""The name under which replicas compare which shard they have, as the error says it."""


class FSDPState(ShardedState):
    """The exchange of a sharded model. Made by ``compress_fsdp``."""

    @ordinary_modes()
    def __init__(
        self,
        model: nn.Module,
        compressor: Any,
        replicate: DeviceMesh | Literal[False] | None,
        scaler: Any,
        lr_correction: Any,
        optimizer: Any,
        variance_correction: Any,
        weights: Any,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self._hooks: list[Between] = []
        self._differences: list[DifferenceGather] = []
        self._gathers, self._switch = Metrics(), cast("WeightSwitch | None", None)
        decides = isinstance(weights, str) and weights == AUTO
        given = None if decides else weights
        self._wires: dict[tuple[int, ...], WeightWire] = {}
        self._channels: dict[tuple[int, ...], Channel] = {}
        # If the compiled model was sharded, and not the module in it, its wrapper is the module that reduces.
        groups, model = managed(model), uncompiled(model)
        sharded = sharded_in(model)
        if not sharded:
            advice = "call fully_shard on it first", "give an object of it"
            other = "for FullyShardedDataParallel use gradwire.compress_fsdp1"
            refuse(not_sharded(model, compressor, "a module after fully_shard", *advice, other), CALLER, None, model)
        grid = grid_of([info_of(group) for _, group in groups], sharded, replicate)
        mesh, replicas = grid.shard, grid.replicate
        self._groups = [group for _, group in groups]
        device, names = device_of(mesh), {id(param): name for name, param in sharded.items()}
        doubts = list[str]()

        def check() -> None:
            check_model(groups, sharded, grid, replicate, options)
            refuse_sparse(name for name, param in sharded.items() if id(param) in sparse_in(model))
            self._weights = weight_code(given)
            self._check_training(sharded.values(), scaler, lr_correction, optimizer, variance_correction)
            if replicate is not False and (doubt := replicas_left_out(mesh, replicas)) is not None:
                doubts.append(doubt)

        told: dict[str, Any] = {
            "sharded": mesh.size(),
            "variance_correction": variance_correction is not None,
            "weights": weights if isinstance(weights, str) else repr(weights),
            **Units.facts(scaler, lr_correction),
        }
        shards = [mesh.get_group()] if replicas is not None and mesh.ndim == 1 else []
        # Ranks that average with each other must hold the same rows.
        told |= {SHARD: mesh.get_local_rank()} if shards else {}
        where = replicas if replicas is not None and line_of(replicas) else mesh

        def make() -> Exchange:
            prepared = prepare(
                model,
                compressor,
                options,
                where.get_group(0),
                CALLER,
                only=names,
                check=check,
                carrier=model,
                device=device,
                **told,
            )
            self.uncompressed = set(prepared.uncompressed)
            return prepared.exchange

        self.exchange = agreed_along(make, [*shards, *grid.part_groups], device)
        self.tensor_part, self.tensor_parts = grid.part, grid.parts
        self._timeout = options.get("timeout")
        if replicas is None:
            self.check_scatter()
            one_mesh = all(shard_group(group).size() == mesh.size() for _, group in groups)
            self._switch = self._switch_of(decides) if one_mesh else None
            self.steer(one_mesh=one_mesh, weights=self._switch)
        else:
            self.shard, self.shards = mesh.get_local_rank(), mesh.size()
            if self.exchange.controller is not None:
                self.exchange.controller.advise_nothing()
            if not grid.native:
                share_start([cast(Any, param).to_local() for param in sharded.values()], replicas.get_group(), device)
        if doubts and self.exchange.channel.rank == 0:
            log.warning(doubts[0])
        compressed = {name: param for name, param in sharded.items() if name not in self.uncompressed}
        shapes = {id(param): (name, tuple(param.shape)) for name, param in compressed.items()}
        self.correct(variance_correction)
        self._follow_training(
            Units(scaler, lr_correction, names),
            shapes,
            optimizer or variance_correction or lr_correction,
            model,
            corrected=variance_correction is not None,
        )
        self._gather_waits = GatherWaits(
            device,
            lambda: (controller := self.exchange.controller) is not None and controller.timed,
            forward=self._switch is not None,
        )
        trained = {id(param): param for param in sharded.values() if param.requires_grad}
        self.dropped = DroppedGradients(self.exchange, trained, DROPPED, hooks=False)
        self.follow_steps(sharded.values())
        for module, group in groups:
            self._attach(module, group, names, grid)

    def _switch_of(self, decides: bool) -> WeightSwitch | None:
        """Make the part through which a controller sees how weights are gathered, and chooses it.

        None: there is no controller, or on an accelerator, where gathers are beside what computes.
        """
        controller, counters = self.exchange.controller, self.exchange.counters
        if not isinstance(controller, AutoController) or self.exchange.device.type != "cpu":
            return None
        self._gathers.clock = lambda: counters.clock()
        return WeightSwitch(controller.budget.weights if decides else None, counters, self._gathers)

    def buffers(self) -> int | None:
        if self.exchange.device.type == "cpu":
            return super().buffers()
        # Not in torch 2.11, which waits for the last reduction.
        return max(getattr(group.comm_ctx, "reduce_scatter_max_input_buffers", 1) for group in self._groups)

    def gathers(self) -> Gathers:
        counted = Gathers() if self._switch is None else self._switch.counted()
        return replace(counted, stalls=self._gather_waits.taken())

    def change(self, compressor: Any, **options: Any) -> None:
        super().change(compressor, **options)
        if self._switch is not None:
            self._switch.leave()

    def close(self) -> None:
        """Stop exchanging: the model must be compressed anew before the next backward pass."""
        # The threads first: they use the channels that are closed below.
        super().close()
        self._gather_waits.leave()
        for wire in self._wires.values():
            wire.worker.close()
        for hook in self._hooks:
            hook.leave()
        for group in self._groups:
            # Another state may have taken the model since.
            if any(getattr(group._all_gather_comm, "wire", None) is wire for wire in self._wires.values()):
                give_back_gather(group)
        self._differences.clear()
        for channel in (*self._channels.values(), *(wire.channel for wire in self._wires.values())):
            channel.close()

    def metrics(self) -> dict[str, Any]:
        """Return the figures of ``compress_ddp``, and with ``weights`` those of the all-gathers as "weights_...".

        "weights_estimate_bytes" is the memory of the whole model that differences need on this rank.
        """
        told = super().metrics()
        if self._weights is None and self._switch is None:
            return told
        kept = sum(tensor.nbytes for tensor in self.estimates())
        return {
            **told,
            **{f"weights_{name}": value for name, value in self._gathers.as_dict().items()},
            "weights_estimate_bytes": kept,
        }

    def estimates(self) -> list[Tensor]:
        """Return the weights as all ranks know them, where differences are sent: of shape (ranks, elements of a shard)
        for each module that was gathered.
        """
        return [gather.estimate for gather in self._differences if gather.estimate is not None]

    def state_dict(self) -> dict[str, Any]:
        """Return the same state as DDP's; between replicas each rank's is that of its own shard.

        With differences of weights it has this rank's part of the estimate, a shard of the model, too.
        """
        state = super().state_dict()
        if not self._differences:
            return state
        own = state if "ranks" in state else state["parts"][str(self.place)]
        ranks, rank = own["ranks"], str(self.exchange.channel.rank)
        parts = {name: part for gather in self._differences for name, part in gather.state_dict().items()}
        ranks[rank] = counted({**ranks[rank], "weights": parts})
        return state

    def load_state_dict(self, state: Mapping[str, Any], on_resize: OnResize = "error") -> None:
        super().load_state_dict(state, on_resize)
        if not self._differences:
            return
        fitted, channel = self.fitted(state, on_resize), self.exchange.channel
        # With another number of ranks the shards are others, and estimates begin anew with the weights.
        own = fitted["ranks"].get(str(channel.rank), {}) if fitted["world"] == channel.world else {}
        for gather in self._differences:
            gather.load_state_dict(own.get("weights", {}))

    def between_replicas(
        self, output: Tensor, named: Sequence[Named], scale: float, later: float, ready: Moment
    ) -> None:
        """Replace a module's shard of the gradient by its mean over the replicas, multiplied by ``scale``.

        Args:
            later: divisor that FSDP applies afterwards.
            ready: time at which the shards were reduced; None: the thread that computes waits for this mean.
        """
        names = [name for name, _ in named]
        self.begin(names)
        if names and names[0] in self.uncompressed:
            flat = self.exchange.mean(output)
        else:
            self.units.follow_divisor(self.exchange, names, later / scale)
            flat = self.scratch.float32(output)
            self.exchange.run(flat, named, output.itemsize, ready)
        if scale != 1:
            flat.mul_(scale)
        if flat is not output:
            self.exchange.rollback.note([nonfinite(output.copy_(flat))])
        # FSDP casts and drops what it allocated on another stream.
        used_here(output)

    def _attach(self, module: FSDPModule, group: Any, names: Mapping[int, str], grid: RankGrid) -> None:
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

        # A closed state may have left hooks, which would be taken for FSDP's own.
        detach(module, group)
        shards = shard_group(group)
        cuts = [cut_of(names[id(each.sharded_param)], each, shards.size()) for each in group.fsdp_params]
        taken = self.uncompressed.isdisjoint(cut.name for cut in cuts)
        if (self._weights is not None or self._switch is not None) and shards.size() > 1 and taken:
            group._all_gather_comm = self._gather(group, cuts, shards)
        self.cuts |= {cut.name: cut for cut in cuts}
        self.sizes |= {cut.name: cut.chunk if self.shards else cut.padded for cut in cuts}

        together = ModuleGroupBackward(group) if len(group.modules) > 1 else None

        def trained() -> list[Sharded]:
            params = group.fsdp_params
            ready = together.ready() if together is not None else params
            # From torch 2.15 on gradients of one dtype lie together in what FSDP reduces.
            order = getattr(group, "_reduce_scatter_param_indices", range(len(params)))
            return [cuts[i] for i in order if params[i].sharded_param.requires_grad and params[i] in ready]

        if not self.shards:
            # The module's own method refuses modules that have parameters on two meshes.
            channel, later = self._inner(shards, grid), partial(divided_later, group)
            own = InnerReduceScatter(DefaultReduceScatter())
            unread = partial(read_at_the_end, group)
            group._reduce_scatter_comm = ReduceScatter(self, trained, later, channel, own, unread)
            if self.exchange.controller is not None:
                self._gather_waits.watch(group)
            return
        inner = InnerReduceScatter(group._reduce_scatter_comm, lambda: self.exchange.controller is not None)
        module.set_custom_reduce_scatter(cast(Any, inner))
        native = take_over(group, grid) if grid.native else None
        self._hooks.append(Between(self, group, trained, inner, native))
        module.set_all_reduce_hook(self._hooks[-1])

    def _gather(self, group: Any, cuts: Sequence[Sharded], shards: Any) -> WeightGather:
        """Make the function that gathers the weights of a module, in place of what FSDP called before."""
        from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

        wire, theirs = self._wire(shards), group._all_gather_comm
        if not isinstance(self._weights, EF21):
            return WeightGather(wire, cuts, shards, theirs, again=group.post_forward_mesh_info is not None)

        def backward() -> bool:
            return bool(group._training_state is TrainingState.PRE_BACKWARD)

        made = DifferenceGather(wire, cuts, shards, theirs, backward)
        self._differences.append(made)
        return made

    def _wire(self, group: dist.ProcessGroup) -> WeightWire:
        """Find or make the function that carries the weights of modules that are sharded over this group."""
        ranks = tuple(dist.get_process_group_ranks(group))
        if ranks not in self._wires:
            policy, device = self.exchange.methods.policy, self.exchange.device
            self._wires[ranks] = WeightWire(
                self._weights, policy, group, self._timeout, device, self._gathers, self._switch
            )
        return self._wires[ranks]

    def _inner(self, group: dist.ProcessGroup, grid: RankGrid) -> Channel | None:
        """The channel of modules that are sharded over some of the ranks; None if over all."""
        ranks = tuple(dist.get_process_group_ranks(group))
        if len(ranks) == grid.shard.size():
            return None
        self.several = True
        if ranks not in self._channels and len(ranks) > 1:
            # A channel of their own, because ranks that do not have the module take no part.
            self._channels[ranks] = private_channel(
                group, self._timeout, self.exchange.device, self.exchange.channel.metrics
            )
        return self._channels.get(ranks)


class Between:
    """An all-reduce hook of FSDP for one module: its shards' mean over the replicas.

    Args:
        inner: reduce-scatter along the shards, which comes before.
        native: mesh that FSDP had for the module, if it averaged between the replicas before.
    """

    def __init__(
        self,
        state: FSDPState,
        group: Any,
        trained: Callable[[], Sequence[Sharded]],
        inner: InnerReduceScatter,
        native: Any = None,
    ) -> None:
        self.state, self.group, self.trained, self.inner, self.native = state, group, trained, inner, native
        self._pending: dict[tuple[str, ...], Tensor] = {}

    def leave(self) -> None:
        """Restore the module, so that FSDP reduces between the replicas, too."""
        if self.native is not None:
            place(self.group, self.native)

    @torch.no_grad()
    def __call__(self, output: Tensor) -> None:
        """Replace this rank's part of the gradient by its mean, or by the sum where a divide factor was set."""
        named = [(cut.name, cut.shape) for cut in self.trained()]
        names = tuple(name for name, _ in named)
        check_size(output, sum(torch.Size(shape).numel() for _, shape in named))
        if not self.group.all_reduce_grads:
            # Micro-batches are added up, and nothing arrives before the last, as in FSDP's own hybrid sharding.
            self._pending[names] = self._pending[names].add_(output) if names in self._pending else output.clone()
            output.zero_()
            return
        if names in self._pending:
            output.add_(self._pending.pop(names))
        # A factor that was set stands in place of the number of all ranks, replicas included.
        scale = self.state.exchange.channel.world if self.group.gradient_divide_factor is not None else 1
        later = divided_later(self.group, output.dtype)
        # Gloo lets the host wait, and what computes with it.
        ready = self.inner.done if self.state.exchange.channel.is_nccl else None
        self.state.between_replicas(output, named, scale, later, ready)


def detach(module: FSDPModule, group: Any) -> None:
    """Remove the hooks that a closed state left."""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

    if isinstance(group._reduce_scatter_comm, ReduceScatter):
        group._reduce_scatter_comm = DefaultReduceScatter()
    elif isinstance(group._reduce_scatter_comm, InnerReduceScatter):
        module.set_custom_reduce_scatter(group._reduce_scatter_comm.theirs)
    give_back_gather(group)
    if isinstance(group.post_backward, ModuleGroupBackward):
        group.post_backward.leave()
    if isinstance(group._all_reduce_hook, Between):
        group._all_reduce_hook.leave()
        module.set_all_reduce_hook(cast(Any, None))


def shard_group(group: Any) -> Any:
    """The process group over which a module's weights are gathered for the forward pass."""
    return info_of(group).shard_process_group


def give_back_gather(group: Any) -> None:
    """Let FSDP gather a module's weights as it did before."""
    if isinstance(group._all_gather_comm, WeightGather):
        group._all_gather_comm = group._all_gather_comm.theirs


def info_of(group: Any) -> Any:
    """Find the mesh of a module as ``fully_shard`` was given it, also while it reduces along the shards alone."""
    hook = group._all_reduce_hook
    return hook.native if isinstance(hook, Between) and hook.native is not None else group.mesh_info


def take_over(group: Any, grid: RankGrid) -> Any:
    """Restrict FSDP's reduction of a module's gradients to the shards.

    Returns:
        The former mesh, which ``place`` puts back.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

    native = group.mesh_info
    inner = FSDPMeshInfo(grid.shard, shard_mesh_dim=0)
    inner.shard_process_group = native.shard_process_group
    if hasattr(native, "reduce_scatter_process_group"):  # Not in torch 2.11.
        inner.reduce_scatter_process_group = native.reduce_scatter_process_group
    place(group, inner)
    return native


def place(group: Any, info: Any) -> None:
    """Give a module another mesh, also for gathering its parameters after the forward pass if that was the same."""
    if group.post_forward_mesh_info is group.mesh_info:
        group.post_forward_mesh_info = info
    group.mesh_info = info


def divided_later(group: Any, dtype: torch.dtype) -> float:
    """The number by which FSDP divides a module's gradient after it was reduced in this dtype.

    In float32 and bfloat16 the reduction itself divides, unless FSDP was told to sum only. In float16 FSDP divides by
    about the root of the factor before the reduction, and by the rest after it.
    """
    wide = dtype in (torch.float32, torch.bfloat16)
    if wide and not group.force_sum_reduction_for_comms:
        return 1.0
    factor = group.gradient_divide_factor
    factor = float(group._reduce_scatter_process_group.size() if factor is None else factor)
    before = 1
    while not wide and factor % before == 0 and factor / before > before:
        before *= 2
    return factor / before


def read_at_the_end(group: Any, dtype: torch.dtype) -> bool:
    """Return whether FSDP makes a module's gradients views of what it reduces in this dtype, and reads no element."""
    fresh = all(
        each.sharded_param.grad is None
        and not each.offload_to_cpu
        and not getattr(each.sharded_param, "_post_accumulate_grad_hooks", None)
        for each in group.fsdp_params
    )
    # From torch 2.15 on each parameter says which dtype its gradient gets; before it was that of the parameter.
    dtypes = {getattr(each, "sharded_grad_dtype", each.orig_dtype) for each in group.fsdp_params}
    own = group._all_reduce_hook is None and dtypes <= {None, dtype}
    return fresh and own and divided_later(group, dtype) == 1.0


def sharded_in(model: object) -> dict[str, nn.Parameter]:
    """Parameters after ``fully_shard``, frozen ones included, by name."""
    if not isinstance(model, nn.Module):
        return {}
    return {name: param for name, param in model.named_parameters() if hasattr(param, "device_mesh")}


def device_of(mesh: DeviceMesh) -> torch.device:
    """The device on which gradients are reduced: parameters may be offloaded, or without memory yet."""
    if mesh.device_type == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(mesh.device_type)


def managed(model: object) -> list[tuple[FSDPModule, Any]]:
    """Every module whose gradients FSDP reduces, with its group of parameters, as they are registered now."""
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, nn.Module):
        return []
    found: dict[int, tuple[FSDPModule, Any]] = {}
    for module in (each for each in model.modules() if isinstance(each, FSDPModule)):
        for group in parameter_groups(module):
            for each in group.fsdp_params if group.is_sharded else ():
                each.reset_sharded_param()  # After load_state_dict(assign=True) they are others.
            found.setdefault(id(group), (module, group))
    return list(found.values())


def parameter_groups(module: FSDPModule) -> Sequence[Any]:
    """The groups of parameters of one module of FSDP.

    Raises:
        ConfigError: this torch has another FSDP2.
    """
    state: Any = getattr(module, "_get_fsdp_state", lambda: None)()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None and hasattr(state, "_fsdp_param_group"):
        # Before torch 2.12 a module has one group at most.
        groups = [group for group in [state._fsdp_param_group] if group is not None]
    if groups is None or not hasattr(module, "set_custom_reduce_scatter"):
        raise ConfigError(
            f"torch must have an FSDP2 like those of 2.11 and 2.13, which were tested, got {torch.__version__}: "
            "take that torch, or compress_fsdp1, or gradwire.wrap_group for the process group"
        )
    return cast(Sequence[Any], groups)


def check_model(
    groups: Sequence[tuple[FSDPModule, Any]],
    sharded: Mapping[str, Any],
    grid: RankGrid,
    replicate: Any,
    options: Mapping[str, Any],
) -> None:
    """Refuse parameters that would not be compressed, or not in the way they lie."""
    names = {id(param): name for name, param in sharded.items()}
    lies = {
        names.get(id(each.sharded_param), "model"): (each.sharded_param, info_of(group))
        for _, group in groups
        for each in group.fsdp_params
    }
    check_mesh(lies, grid.shard, alone=grid.replicate is None)
    sizes = {tuple(ranks_of(info.mesh)) for _, info in lies.values()}
    one = grid.replicate is None or len(sizes) == 1
    require(one, "mesh of the model", f"one for all modules with replicas; {ANY_MESH}", sizes)
    if grid.native:
        require(replicate is None, "replicate", "left out: the mesh of the model has its replicas", replicate)
    elif grid.replicate is not None:
        check_replicas(grid.replicate, grid.shard)
    own = "process_group" not in options
    require(own, "process_group", "left out: the ranks are those of the model's mesh, or of replicate=", "one")
    for name, param in sharded.items():
        missing = grid.replicate is not None and not grid.native and param.is_meta
        require(
            not missing,
            f"device of {name}",
            "one with memory before replicas are made equal: call to_empty and initialise it first",
            "meta",
        )
    reduced = {id(each.sharded_param) for _, group in groups for each in group.fsdp_params}
    apart = [name for name, param in sharded.items() if id(param) not in reduced]
    same = not apart and len(reduced) == len(sharded)
    require(
        same,
        "model",
        "the module that was given to fully_shard, with all whose parameters it reduces",
        f"one whose {', '.join(apart[:3])} it does not" if apart else "a part of it",
    )
    for _, group in groups:
        check_hooks(group._reduce_scatter_comm, group._all_reduce_hook)
        theirs = group._all_gather_comm
        ours = isinstance(theirs, WeightGather) or type(theirs).__module__.startswith("torch.")
        require(ours, "model", "one whose weights FSDP gathers by itself", f"one with the all-gather {kind_of(theirs)}")


def check_hooks(comm: object, hook: object) -> None:
    """Refuse a module whose gradients another hook reduces, or an exchange of ours that was not closed."""
    ours = [each.state.closed for each in (comm, hook) if isinstance(each, ReduceScatter | Between)]
    if ours:
        remedy = (
            "one without a state: give it another method with state.change(...), or close it first with state.close()"
        )
        require(all(ours), "model", remedy, "one that gradwire.compress_fsdp exchanges already")
        return
    torchs = type(comm).__module__.startswith("torch.") or isinstance(comm, InnerReduceScatter)
    remedy = "one whose gradients FSDP reduces by itself: without set_custom_reduce_scatter and set_all_reduce_hook"
    require(torchs, "model", remedy, f"one with the reduce-scatter {kind_of(comm)}")
    require(hook is None, "model", remedy, f"one with the all-reduce hook {getattr(hook, '__name__', kind_of(hook))}")


@short_traceback
def compress_fsdp(
    model: nn.Module,
    compressor: Any = "auto",
    *,
    replicate: DeviceMesh | Literal[False] | None = None,
    scaler: Any = None,
    lr_correction: Any = None,
    optimizer: Any = None,
    variance_correction: Any = None,
    weights: Any = AUTO,
    **options: Any,
) -> FSDPState:
    """Reduce the gradients of a ``fully_shard`` model compressed, from the next backward on.

    All ranks must call it, with the same arguments, after ``fully_shard`` and before the optimizer is made or after.
    Each rank keeps a residual of all that it sends: 4 bytes for each element of the whole model.

    Args:
        model: model after ``fully_shard``, compiled or not, whose gradients FSDP reduces by itself, over one mesh: of
            one dimension, where experts may lie on fewer ranks, or of two, which are replicas and shards. Tensor
            parallelism may have cut it before. On a mesh of two dimensions the mean between the replicas is compressed,
            as with ``replicate``.
        compressor: a registered name, a compressor or a recipe; without ``replicate`` of one message and fixed size.
        replicate: mesh of the replicas, for hybrid sharding: the model is sharded over ``mesh["shard"]`` alone, and its
            shards are averaged over this dimension, compressed; inside the shard dimension FSDP reduces as ever. A rank
            keeps residuals of its own shard only, and every method and strategy can be used. None: there are no
            replicas but those of the model's mesh, which is an error where another dimension has a name of data
            parallelism, such as "replicate" or "dp", and a warning where ranks of the job are left out and no name says
            why; with "tp" and "pp" it is right. False: there may be replicas, and they are averaged elsewhere or are
            meant to differ.
        scaler: a ``GradScaler``: residuals follow its scale.
        lr_correction: the optimizer: residuals are rescaled when a schedule changes its learning rates.
        optimizer: optimizer that trains the model: a warning says at once, and not at its first step, if the method
            harms it.
        variance_correction: an optimizer such as Adam: its learning rates are multiplied by what the noise of the code
            shortens its steps by. With ``replicate`` by that of the own shard's replicas.
        weights: a method for the all-gather of the weights, whose error is small and that is not random: "blockwise8",
            "fp8", "bf16". All ranks compute with the same decoded weights, in both passes; the optimizer's own stay
            exact. Or "ef21:inner=loco": the 4-bit difference from what all ranks know of the weights, once for both
            passes; for that each rank keeps the whole model, in the dtype of the all-gather, and its first gather is
            uncompressed. Shards with fewer than ``min_numel`` elements and ``exclude``d parameters travel as they are.
            None: all do. "auto": where ``compressor`` is decided, this is, too; where a method is named, as None.
        options: further arguments, as for ``compress_ddp``; without ``replicate`` there is one strategy.

    Returns:
        The state; ``state.metrics()`` tells what went over the wire.

    Raises:
        ConfigError: a wrong option, a model that is not sharded, or has a state or a hook already, or a mesh
            ``replicate`` whose ranks are not this shard's replicas. Nothing was written.
        GroupError: ranks were given different options.

    Example:
        >>> import os, torch, torch.distributed as dist, gradwire
        >>> from torch.distributed.fsdp import fully_shard
        >>> os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        >>> model = fully_shard(torch.nn.Linear(64, 64), mesh=mesh)
        >>> state = gradwire.compress_fsdp(model, "qsgd", bits=4)
        >>> dist.destroy_process_group()
    """
    return FSDPState(
        model, compressor, replicate, scaler, lr_correction, optimizer, variance_correction, weights, options
    )
