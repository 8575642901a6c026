"""FSDP2 (``fully_shard``): a compressed reduce-scatter, or a compressed all-reduce between replicas.

Law: FSDP hands over the gradients of one module at a time, cut by rows into a part for each rank, and calls in the
order of backward, the same on all ranks. Residuals are kept by parameter, in row order, padded to whole rows for each
rank. FSDP waits for nothing on a CPU, so a call there returns when its result is there; on NCCL it runs on the stream
that FSDP called it on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from gradwire.comm._part import nonfinite
from gradwire.errors import require
from gradwire.exchange import Exchange
from gradwire.integrations._cut import Sharded
from gradwire.integrations._ownership import Caller
from gradwire.integrations._setup import prepare, share_start
from gradwire.integrations._sharded import ReduceScatter, ShardedState, check_scatter, check_size
from gradwire.integrations._state import Units
from gradwire.keeper import used_here
from gradwire.plan import Named

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

__all__ = ["FSDPState", "compress_fsdp"]


class FSDPState(ShardedState):
    """The exchange of a sharded model. Made by ``compress_fsdp``."""

    def __init__(self, model: nn.Module, compressor: Any, replicate: DeviceMesh | None, scaler: Any,
                 lr_correction: Any, options: Mapping[str, Any]) -> None:  # fmt: skip
        super().__init__()
        self._scatters = replicate is None
        groups, sharded = managed(model), sharded_in(model)
        require(bool(sharded), "model", "a module after fully_shard", type(model).__name__)
        mesh = mesh_of(sharded)
        device = device_of(mesh)
        check = partial(check_model, groups, sharded, replicate, scaler, lr_correction)
        self.exchange = prepare(model, compressor, options, (replicate or mesh).get_group(0),
                                Caller("gradwire.compress_fsdp", "fsdp"), check=check, carrier=model, device=device,
                                sharded=mesh.size()).exchange  # fmt: skip
        if replicate is None:
            check_scatter(self.exchange)
        else:
            self.shard, self.shards = mesh.get_local_rank(), mesh.size()
            share_start([local_of(param) for param in sharded.values()], replicate.get_group(), device)
        names = {id(param): name for name, param in sharded.items()}
        self.units = Units(scaler, lr_correction, names)
        self.units.read_ahead(model, device)
        self.exchange.skips_steps = self.units.scaler is not None
        for index, (module, group) in enumerate(groups):
            self._attach(module, group, names, index)

    def check(self, exchange: Exchange) -> None:
        """As at set-up."""
        if self._scatters:
            check_scatter(exchange)

    def between_replicas(self, output: Tensor, named: Sequence[Named], index: int, scale: float, later: float) -> None:
        """Replace a module's shard of the gradient by its mean over the replicas, multiplied by ``scale``.

        Args:
            later: by what FSDP divides it afterwards.
        """
        self.begin(index)
        self.units.follow_divisor(self.exchange, [name for name, _ in named], later / scale)
        flat = self.scratch.float32(output)
        self.exchange.run(flat, named, output.itemsize)
        if scale != 1:
            flat.mul_(scale)
        if flat is not output:
            self.exchange.note(nonfinite(output.copy_(flat)))
        # FSDP casts and drops what it allocated on another stream.
        used_here(output)

    def _attach(self, module: FSDPModule, group: Any, names: Mapping[int, str], index: int) -> None:
        world = mesh_of({"": group.fsdp_params[0].sharded_param}).size()
        cuts = [Sharded(names[id(each.sharded_param)], tuple(each.sharded_param.shape), world)
                for each in group.fsdp_params]  # fmt: skip
        self.cuts |= {cut.name: cut for cut in cuts}
        self.sizes |= {cut.name: cut.padded if self._scatters else cut.chunk for cut in cuts}

        def trained() -> list[Sharded]:
            pairs = zip(cuts, group.fsdp_params, strict=True)
            return [cut for cut, each in pairs if each.sharded_param.requires_grad]

        if self._scatters:
            module.set_custom_reduce_scatter(
                cast(Any, ReduceScatter(self, trained, index, partial(divided_later, group)))
            )
        else:
            module.set_all_reduce_hook(Between(self, group, trained, index))


class Between:
    """FSDP's all-reduce hook for one module: its shards' mean over the replicas."""

    def __init__(self, state: FSDPState, group: Any, trained: Callable[[], Sequence[Sharded]], index: int) -> None:
        self.state, self.group, self.trained, self.index = state, group, trained, index
        self._waits: Tensor | None = None

    @torch.no_grad()
    def __call__(self, output: Tensor) -> None:
        """Replace this rank's part of the gradient by its mean, or by the sum where a divide factor was set."""
        named = [(cut.name, cut.shape) for cut in self.trained()]
        check_size(output, sum(torch.Size(shape).numel() for _, shape in named))
        if not self.group.all_reduce_grads:
            # As FSDP's own hybrid sharding does: micro-batches are added up, and nothing arrives before the last.
            self._waits = output.clone() if self._waits is None else self._waits.add_(output)
            output.zero_()
            return
        if self._waits is not None:
            output.add_(self._waits)
            self._waits = None
        # A factor that was set stands in place of the number of all ranks, replicas included.
        scale = self.state.exchange.channel.world if self.group.gradient_divide_factor is not None else 1
        self.state.between_replicas(output, named, self.index, scale, divided_later(self.group, output.dtype))


def divided_later(group: Any, dtype: torch.dtype) -> float:
    """By what FSDP divides a module's gradient after it was reduced in this dtype.

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


def sharded_in(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters after ``fully_shard``, frozen ones included, by name."""
    return {name: param for name, param in model.named_parameters() if hasattr(param, "device_mesh")}


def mesh_of(params: Mapping[str, Any]) -> DeviceMesh:
    return cast("DeviceMesh", next(iter(params.values())).device_mesh)


def device_of(mesh: DeviceMesh) -> torch.device:
    """Where gradients are reduced: parameters may be offloaded, or without memory yet."""
    if mesh.device_type == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(mesh.device_type)


def local_of(param: Any) -> Tensor:
    return cast(Tensor, param.to_local())


def managed(model: nn.Module) -> list[tuple[FSDPModule, Any]]:
    """Every module that FSDP reduces gradients of, with its group of parameters, as they are registered now."""
    from torch.distributed.fsdp import FSDPModule

    found: dict[int, tuple[FSDPModule, Any]] = {}
    for module in (each for each in model.modules() if isinstance(each, FSDPModule)):
        for group in cast(Any, module)._get_fsdp_state()._fsdp_param_groups:
            for each in group.fsdp_params if group.is_sharded else ():
                each.reset_sharded_param()  # After load_state_dict(assign=True) they are others.
            found.setdefault(id(group), (module, group))
    return list(found.values())


def check_model(
    groups: Sequence[tuple[FSDPModule, Any]], sharded: Mapping[str, Any], replicate: DeviceMesh | None, scaler: Any,
    lr_correction: Any,
) -> None:  # fmt: skip
    """Refuse what would not be compressed, or not as it lies.

    Raises:
        ConfigError
    """
    Units.check(scaler, lr_correction)
    mesh = mesh_of(sharded)
    remedy = "one dimension; for hybrid sharding shard over mesh['shard'] and give replicate=mesh['replicate']"
    require(mesh.ndim == 1, "mesh of the model", remedy, f"{mesh.ndim} dimensions")
    for name, param in sharded.items():
        by_rows = param.placements[0].is_shard(0)
        require(by_rows, f"placement of {name}", "Shard(0), by rows, as without shard_placement_fn",
                str(param.placements[0]))  # fmt: skip
        missing = replicate is not None and param.is_meta
        require(not missing, f"device of {name}", "one with memory before replicas are made equal: call to_empty and "
                "initialise it first", "meta")  # fmt: skip
    reduced = {id(each.sharded_param) for _, group in groups for each in group.fsdp_params}
    apart = [name for name, param in sharded.items() if id(param) not in reduced]
    same = not apart and len(reduced) == len(sharded)
    require(same, "model", "the module that was given to fully_shard, with all whose parameters it reduces",
            f"one whose {', '.join(apart[:3])} it does not" if apart else "a part of it")  # fmt: skip


def compress_fsdp(
    model: nn.Module, compressor: Any = "qsgd", *, replicate: DeviceMesh | None = None, scaler: Any = None,
    lr_correction: Any = None, **options: Any,
) -> FSDPState:  # fmt: skip
    """Reduce the gradients of a ``fully_shard`` model compressed, from the next backward on.

    All ranks must call it, with the same arguments, after ``fully_shard`` and before the optimizer is made or after.
    Each rank keeps a residual of all that it sends: 4 bytes for each element of the whole model.

    Args:
        model: sharded by rows over one dimension of a mesh.
        compressor: a registered name, a compressor or a recipe; without ``replicate`` of one message and fixed size.
        replicate: for hybrid sharding: the model is sharded over ``mesh["shard"]`` alone, and its shards are averaged
            over this dimension, compressed; inside the shard dimension FSDP reduces as ever. A rank keeps residuals
            of its own shard only, and every method and strategy can be used.
        scaler: a ``GradScaler``: residuals follow its scale.
        lr_correction: the optimizer: residuals are rescaled when a schedule changes its learning rates.
        options: as for ``compress_ddp``; without ``replicate`` there is one strategy.

    Returns:
        The state; ``state.metrics()`` tells what went over the wire.

    Raises:
        ConfigError: a wrong option, or a model that is not sharded.
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
    return FSDPState(model, compressor, replicate, scaler, lr_correction, options)
