"""Communication hook for FSDP1 (``FullyShardedDataParallel``), with a compressed reduce-scatter.

Invariants:
    Residuals are kept by module and not by parameter, and methods see vectors: FSDP1 flattens the parameters of a
    module into one vector and cuts it into equal parts, also in the middle of a parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire._short_traceback import short_traceback
from gradwire.engine.shards import Sharded
from gradwire.errors import ConfigError, require
from gradwire.frontends.ownership import Caller
from gradwire.frontends.setup import kind_of, prepare_named, refuse, uncompiled
from gradwire.frontends.sharded import ReduceScatter, ShardedState, not_sharded
from gradwire.frontends.state_units import Units
from gradwire.frontends.uncompressed import refuse_sparse, tables_in
from gradwire.modes import ordinary_modes
from gradwire.notices import log

__all__ = ["FSDP1State", "compress_fsdp1", "fsdp1_hook"]


CALLER = Caller("gradwire.compress_fsdp1", "fsdp")


class FSDP1State(ShardedState):
    """The exchange of a model under FSDP1. Made by ``compress_fsdp1``."""

    @ordinary_modes()
    def __init__(
        self,
        model: nn.Module,
        compressor: Any,
        scaler: Any,
        optimizer: Any,
        variance_correction: Any,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__()
        model = uncompiled(model)
        flats = flat_parameters(model)
        if not flats:
            advice = "wrap it first", "give an object of it, wrapped", "after fully_shard use gradwire.compress_fsdp"
            refuse(not_sharded(model, compressor, "a FullyShardedDataParallel module", *advice), CALLER, None, model)
        group = next(iter(handled(model).values())).process_group
        # Parameters that are offloaded wait on the CPU; their gradients do not.
        device = getattr(model, "compute_device", None) or torch.device("cpu")

        def select() -> dict[str, nn.Parameter]:
            check_modules(model, options)
            self._check_training(model.parameters(), scaler, None, optimizer, variance_correction)
            tables = {name: [info.module for info in cast(Any, flat)._param_infos] for name, flat in flats.items()}
            refuse_sparse(name for name, inside in tables.items() if any(map(tables_in, inside)))
            return flats

        prepared = prepare_named(
            select,
            device,
            compressor,
            options,
            group,
            CALLER,
            carrier=model,
            embeddings=partial(edge_modules, model),
            fsdp=1,
            variance_correction=variance_correction is not None,
            **Units.facts(scaler, None),
        )
        self.exchange, self.uncompressed = prepared.exchange, set(prepared.uncompressed)
        self.check_scatter()
        self.steer(one_mesh=True)
        self.correct(variance_correction)
        warn_of_others(self.exchange.channel.rank, group)
        named = {id(flat): (name, (numel_of(flat),)) for name, flat in prepared.compressed.items()}
        # With use_orig_params the optimizer has the parameters that the flat ones are made of.
        largest = max(named.values(), key=lambda each: each[1], default=("", (0,)))
        originals = {id(param): largest for param in model.parameters()}
        self._follow_training(
            Units(scaler, None, {}),
            {**originals, **named},
            optimizer or variance_correction,
            model,
            corrected=variance_correction is not None,
        )
        self.follow_steps(model.parameters())
        world = self.exchange.channel.world
        self.cuts = {name: Sharded(name, (numel_of(flat),), world) for name, flat in flats.items()}
        own = dict.fromkeys(self.uncompressed, reduce_mean)
        self.parts = {
            name: ReduceScatter(self, partial(list, [cut]), own=own.get(name)) for name, cut in self.cuts.items()
        }
        self.sizes = {name: cut.padded for name, cut in self.cuts.items()}


def fsdp1_hook(part: ReduceScatter, grad: Tensor, output: Tensor) -> None:
    """Average a module's flat gradient, padded, into this rank's part of the mean, as FSDP1 asks for it."""
    part(output, grad, cast(dist.ProcessGroup, part.channel.group), dist.ReduceOp.AVG)


def reduce_mean(output: Tensor, grad: Tensor, group: dist.ProcessGroup, _: Any) -> None:
    """Average as FSDP1 does without a hook."""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

    DefaultReduceScatter()(output, grad.div_(group.size()), group, dist.ReduceOp.SUM)


def handled(model: object) -> dict[str, Any]:
    """Every module whose gradient FSDP1 reduces, by name."""
    modules = model.named_modules() if isinstance(model, nn.Module) else ()
    return {name or "root": module for name, module in modules if getattr(module, "_handle", None) is not None}


def flat_parameters(model: object) -> dict[str, nn.Parameter]:
    """The shard of this rank of each module's flat parameter, by the module's name."""
    return {name: module._handle.flat_param for name, module in handled(model).items()}


def edge_modules(model: nn.Module) -> list[str]:
    """The wrapped modules whose flat parameters hold an embedding, or the first or the last matrix of the model.

    A flat parameter has one method, so that of what bears the least is taken for all of it.
    """
    order = {id(module): place for place, module in enumerate(model.modules())}
    matrices: list[tuple[int, str]] = []
    found: list[str] = []
    for name, flat in flat_parameters(model).items():
        for info, shape in zip(cast(Any, flat)._param_infos, cast(Any, flat)._shapes, strict=True):
            if isinstance(info.module, nn.Embedding | nn.EmbeddingBag):
                found.append(name)
            elif len(shape) > 1:
                matrices.append((order[id(info.module)], name))
    found += [each[1] for each in (min(matrices, default=None), max(matrices, default=None)) if each is not None]
    return sorted(set(found))


def check_modules(model: nn.Module, options: Mapping[str, Any]) -> None:
    """Refuse modules whose gradients do not go through a hook, or go over other ranks or through another hook.

    Raises:
        ConfigError
    """
    from torch.distributed.fsdp import FullyShardedDataParallel

    own = "process_group" not in options
    require(own, "process_group", "left out: the ranks are those that the model is sharded over", "one")
    outermost = isinstance(model, FullyShardedDataParallel) and model.check_is_root()
    require(outermost, "model", "the outermost FullyShardedDataParallel module", kind_of(model))
    ranks = dist.get_process_group_ranks(cast(Any, model).process_group)
    for name, module in handled(model).items():
        strategy = module.sharding_strategy.name
        if strategy in ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"):
            raise ConfigError(
                f"sharding_strategy of {name} must be FULL_SHARD or SHARD_GRAD_OP, got {strategy}: FSDP1 calls no hook "
                "with hybrid sharding; with FSDP2 use fully_shard(..., mesh=mesh['shard']) and "
                "gradwire.compress_fsdp(model, replicate=mesh['replicate'])"
            )
        sharded = strategy in ("FULL_SHARD", "SHARD_GRAD_OP")
        require(sharded, "sharding_strategy", "FULL_SHARD or SHARD_GRAD_OP; without shards use DDP", strategy)
        theirs = dist.get_process_group_ranks(module.process_group)
        require(theirs == ranks, f"process_group of {name}", f"of the model's own ranks {ranks}", theirs)
        check_hook(module)


def check_hook(module: Any) -> None:
    """Refuse a module that has a hook, unless it is the one of a closed state.

    Raises:
        ConfigError
    """
    hook, part = module._comm_hook, module._comm_hook_state
    if hook is fsdp1_hook:
        remedy = (
            "one without a state: give it another method with state.change(...), or close it first with state.close()"
        )
        require(part.state.closed, "model", remedy, "one that gradwire.compress_fsdp1 exchanges already")
        return
    given = f"one that has {getattr(hook, '__name__', hook)!r}, and FSDP takes one"
    require(hook is None, "model", "one without a communication hook", given)


def warn_of_others(rank: int, group: dist.ProcessGroup) -> None:
    """Warn once, on rank 0, that other ranks of the job may train the same parameters."""
    ranks, world = dist.get_process_group_ranks(group), dist.get_world_size()
    if rank == 0 and len(ranks) < world:
        log.warning(
            "the model is sharded over ranks %s of %d: nobody averages with others that train the same "
            "parameters; for that use FSDP2 and compress_fsdp(model, replicate=)",
            ranks,
            world,
        )


def numel_of(flat: nn.Parameter) -> int:
    """The number of elements of a flat parameter before it was padded to be cut."""
    return cast(Any, flat)._unpadded_unsharded_size.numel()  # type: ignore[no-any-return]


@short_traceback
def compress_fsdp1(
    model: nn.Module,
    compressor: Any = "bf16",
    *,
    scaler: Any = None,
    optimizer: Any = None,
    variance_correction: Any = None,
    **options: Any,
) -> FSDP1State:
    """Reduce the gradients of a ``FullyShardedDataParallel`` model compressed. New models should use ``compress_fsdp``.

    All ranks must call it, before the first forward. Patterns are over names of wrapped modules, ``"root"`` for the
    model itself.

    Args:
        model: the outermost FSDP module, FULL_SHARD or SHARD_GRAD_OP.
        compressor: compressor of one message and fixed size, by name or as an object; or "auto", which measures and
            decides for each wrapped module within ``budget``.
        scaler: a ``ShardedGradScaler``: residuals follow its scale.
        optimizer: optimizer that trains the model: a warning says at once, and not at its first step, if the method
            harms it.
        variance_correction: an optimizer such as Adam: its learning rates are multiplied by what the noise of the code
            shortens its steps by.
        options: further arguments, as for ``compress_ddp``; there is one strategy.

    Returns:
        The state; ``state.metrics()`` tells what went over the wire.

    Raises:
        ConfigError: a wrong option, or a model that is not wrapped, shards otherwise, or has a hook already.
        GroupError: ranks were given different options.
    """
    state, model = FSDP1State(model, compressor, scaler, optimizer, variance_correction, options), uncompiled(model)
    for module in cast(Any, type(model)).fsdp_modules(model):
        # A closed state's is in the way of another.
        module._comm_hook = None
    cast(Any, model).register_comm_hook(None, fsdp1_hook)
    for name, module in handled(model).items():
        # The public call gives all modules one state, and the hook is not told which module calls.
        module._comm_hook_state = state.parts[name]
    return state
