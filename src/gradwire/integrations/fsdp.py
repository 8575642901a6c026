"""FSDP2 (``fully_shard``): a compressed reduce-scatter, or a compressed all-reduce between replicas.

Law: FSDP hands over the gradients of one module at a time, cut by rows into a part for each rank, and calls in the
order of backward, the same on all ranks. Residuals are kept by parameter, in row order, padded to whole rows for each
rank. FSDP waits for nothing on a CPU, so a call there returns when its result is there; on NCCL it runs on the stream
that FSDP called it on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from gradwire.comm._part import nonfinite
from gradwire.errors import require
from gradwire.exchange import Exchange
from gradwire.integrations._cut import Sharded
from gradwire.integrations._setup import Prepared, prepare, share_start
from gradwire.integrations._sharded import ReduceScatter, ShardedState, check_scatter, check_size
from gradwire.integrations._state import Units
from gradwire.plan import Named

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

__all__ = ["FSDPState", "compress_fsdp"]


class FSDPState(ShardedState):
    """The exchange of a sharded model. Made by ``compress_fsdp``."""

    def __init__(self, model: nn.Module, compressor: Any, replicate: DeviceMesh | None, scaler: Any,
                 lr_correction: Any, options: Mapping[str, Any]) -> None:  # fmt: skip
        from torch.distributed.fsdp import FSDPModule

        super().__init__()
        self._scatters = replicate is None
        self.exchange, params = self._prepare(model, compressor, replicate, scaler, lr_correction, options)
        self.units = Units(scaler, lr_correction, {id(param): name for name, param in params.items()})
        self.exchange.skips_steps = self.units.scaler is not None
        names = {id(param): name for name, param in params.items()}
        mesh = mesh_of(params)
        world = mesh.size()
        if replicate is not None:
            self.shard, self.shards = mesh.get_local_rank(), world
        for module in model.modules():
            if isinstance(module, FSDPModule) and (owned := managed(module, names)):
                shards = [Sharded(names[id(param)], tuple(param.shape), world) for param in owned]
                self._attach(module, shards, whole=replicate is None)
        if replicate is not None:
            share_start([cast(Any, param).to_local() for param in params.values()], replicate.get_group())

    def _prepare(self, model: nn.Module, compressor: Any, replicate: DeviceMesh | None, scaler: Any,
                 lr_correction: Any, options: Mapping[str, Any]) -> Prepared:  # fmt: skip
        params = {name: param for name, param in model.named_parameters() if hasattr(param, "device_mesh")}
        require(bool(params), "model", "a module after fully_shard", type(model).__name__)
        mesh = mesh_of(params)
        remedy = "one dimension; for hybrid sharding shard over mesh['shard'] and give replicate=mesh['replicate']"
        require(mesh.ndim == 1, "mesh of the model", remedy, f"{mesh.ndim} dimensions")
        group = (replicate or mesh).get_group()
        check = partial(Units.check, scaler, lr_correction)
        prepared = prepare(model, compressor, options, group, check=check, sharded=mesh.size())
        if replicate is None:
            check_scatter(prepared.exchange)
        return prepared

    def check(self, exchange: Exchange) -> None:
        """As at set-up."""
        if self._scatters:
            check_scatter(exchange)

    def _attach(self, module: FSDPModule, shards: Sequence[Sharded], *, whole: bool) -> None:
        self.cuts |= {each.name: each for each in shards}
        self.sizes |= {each.name: each.padded if whole else each.chunk for each in shards}
        index = len(self._scratch)
        self._scratch[index] = torch.zeros(0)
        if whole:
            module.set_custom_reduce_scatter(cast(Any, ReduceScatter(self, shards, index)))
        else:
            named = [(each.name, each.shape) for each in shards]
            module.set_all_reduce_hook(partial(self._between_replicas, named, index))

    def _between_replicas(self, named: Sequence[Named], index: int, output: Tensor) -> None:
        """FSDP's all-reduce hook: the shards' mean over the replicas."""
        self.begin(index)
        check_size(output, sum(torch.Size(shape).numel() for _, shape in named))
        flat = self.float32(output, index)
        self.exchange.run(flat, named, output.itemsize)
        if flat is not output:
            self.exchange.note(nonfinite(output.copy_(flat)))


def mesh_of(params: Mapping[str, Any]) -> DeviceMesh:
    return cast("DeviceMesh", next(iter(params.values())).device_mesh)


def managed(module: FSDPModule, known: Mapping[int, str]) -> list[nn.Parameter]:
    """The trainable parameters that FSDP reduces with this module, in the order of its buffer."""
    group = cast(Any, module)._get_fsdp_state()._fsdp_param_group
    params = [each.sharded_param for each in group.fsdp_params] if group is not None else []
    return [param for param in params if id(param) in known]


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
