"""Models of a run under FSDP2: how they are cut, what gathering their weights sends, and the whole model again.

Invariants:
    * Each module of a chain of blocks is gathered and reduced by itself, as trainers do it; all other parameters with
      the model.
    * A worker holds its own rows alone. Code that looks at the model asks all workers for theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from gradwire.metrics import Metrics

__all__ = ["CountedGather", "blocks", "count_gathers", "cut_again", "joined", "rows_of", "shard", "whole", "with_rows"]


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The modules with parameters in the outermost ``nn.Sequential`` of each part of a model.

    >>> layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Sequential(nn.Linear(2, 2)))
    >>> [type(block).__name__ for block in blocks(nn.ModuleDict({"body": layers, "head": nn.Linear(2, 1)}))]
    ['Linear', 'Sequential']
    """
    for part in model.children():
        if isinstance(part, nn.Sequential):
            yield from (block for block in part.children() if any(True for _ in block.parameters()))
        else:
            yield from blocks(part)


def shard(model: nn.Module, device: torch.device) -> nn.Module:
    """Cut a model over all workers, in place; the same one. All must call it, with equal parameters.

    Each block asks for the weights of the next one before it computes, as the streams of a GPU let FSDP do.

    Args:
        model: model on ``device``.
        device: device of the workers' backend.
    """
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    chain = [fully_shard(block, mesh=mesh) for block in list(blocks(model))]
    fully_shard(model, mesh=mesh)
    for block, following in pairwise(chain):
        block.set_modules_to_forward_prefetch([following])
    return model


def whole(model: nn.Module, made: nn.Module) -> nn.Module:
    """Fill a model with the rows of all workers. All must call it.

    Args:
        model: model that ``shard`` has cut.
        made: a model of the same parameters and buffers, which is overwritten and returned.
    """
    made.load_state_dict({name: joined(value) for name, value in model.state_dict().items()})
    return made


def joined(value: Tensor) -> Tensor:
    """The whole of a tensor of which a worker has some rows; any other as it is. All workers must call it."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def cut_again(model: nn.Module, full: Mapping[str, Tensor]) -> None:
    """Give each worker its rows of whole tensors, the reverse of ``joined``. Nothing is sent.

    Args:
        model: model that ``shard`` has sharded, or a whole one.
        full: everything in its ``state_dict``, by name.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(model, dict(full), options=StateDictOptions(full_state_dict=True))


def rows_of(optimizer: Optimizer) -> dict[str, Any]:
    """The state of an optimizer of shards, with this worker's rows as plain tensors."""
    saved = optimizer.state_dict()
    return {**saved, "state": {number: _local(entry) for number, entry in saved["state"].items()}}


def _local(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.to_local() if isinstance(value, DTensor) else value for name, value in entry.items()}


def with_rows(optimizer: Optimizer, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Make of ``rows_of`` what the optimizer loads: a tensor of as many elements as a worker's rows are these rows."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return {**saved, "state": {number: _sharded(params[number], entry) for number, entry in saved["state"].items()}}


def _sharded(param: Tensor, entry: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(param, DTensor):
        return dict(entry)
    own, mesh, cut = param.to_local().shape, param.device_mesh, param.placements
    return {
        name: DTensor.from_local(value, mesh, cut, run_check=False, shape=param.shape, stride=param.stride())
        if isinstance(value, Tensor) and value.shape == own
        else value
        for name, value in entry.items()
    }


class CountedGather:
    """FSDP's all-gather of weights, with its bytes counted.

    Traffic: (W-1) times a worker's own shard.

    Args:
        counters: counters of the bytes.
        theirs: FSDP's own.
    """

    def __init__(self, counters: Metrics, theirs: Any) -> None:
        self.counters, self.theirs = counters, theirs

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for FSDP's weights."""
        return cast(Tensor, self.theirs.allocate(size, dtype=dtype, device=device))

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> Any:
        """Gather as FSDP does by itself."""
        moved = (group.size() - 1) * input_tensor.nbytes
        self.counters.bytes_sent += moved
        self.counters.dense_bytes += moved
        return self.theirs(output_tensor, input_tensor, group, async_op)


def count_gathers(model: nn.Module) -> Metrics:
    """Count what a model's weights send from now on, where nothing compresses them."""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather

    counters = Metrics()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(cast(Any, CountedGather(counters, DefaultAllGather())))
    return counters
