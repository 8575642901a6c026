"""Work of ranks that leave the optimizer's momentum to the memory ``dgc``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from gradwire.frontends.ddp import compress_ddp
from gradwire.frontends.fsdp import compress_fsdp
from gradwire.frontends.optimizer import compress_optimizer
from gradwire.memory.dgc import DGCMemory
from tests.integrations.fsdp_jobs import sharded, whole
from tests.integrations.jobs import batch, model_of

STEPS, RATE = 3, 0.05
DENSE: dict[str, dict[str, Any]] = {"excluded": {"exclude": ["*"]}, "warm-up": {"start_after": STEPS}}
MEMORIES = {"plain": DGCMemory(momentum=0.9), "nesterov": DGCMemory(momentum=0.8, nesterov=True)}

Weights = list[Tensor]


def train(model: nn.Module, rank: int, optimizer: torch.optim.Optimizer) -> None:
    for step in range(STEPS):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def with_momentum(rank: int, memory: DGCMemory) -> Weights:
    """DDP alone, with torch's momentum."""
    model = DistributedDataParallel(model_of())
    train(model, rank, torch.optim.SGD(model.parameters(), lr=RATE, momentum=memory.momentum, nesterov=memory.nesterov))
    return [param.detach() for param in model.parameters()]


def by_ddp(rank: int, options: dict[str, Any]) -> Weights:
    model = DistributedDataParallel(model_of(), bucket_cap_mb=0.05)  # type: ignore[arg-type]
    state = compress_ddp(model, "dgc", **options)
    train(model, rank, torch.optim.SGD(model.parameters(), lr=RATE))
    state.close()
    return [param.detach() for param in model.parameters()]


def by_optimizer(rank: int, options: dict[str, Any]) -> Weights:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    state = compress_optimizer(optimizer, model, "dgc", bucket_mb=0.05, **options)
    train(model, rank, optimizer)
    state.close()
    return [param.detach() for param in model.parameters()]


def by_fsdp(rank: int, options: dict[str, Any]) -> Weights:
    model = sharded(init_device_mesh("cpu", (dist.get_world_size(),)))
    compress_fsdp(model, "dgc", **options)
    train(model, rank, torch.optim.SGD(model.parameters(), lr=RATE))
    return list(whole(model).values())


def by_replicas(rank: int, options: dict[str, Any]) -> Weights:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    model = sharded(mesh["shard"])
    compress_fsdp(model, "dgc", replicate=mesh["replicate"], **options)
    train(model, rank, torch.optim.SGD(model.parameters(), lr=RATE))
    return list(whole(model).values())


WAYS: dict[str, Callable[[int, dict[str, Any]], Weights]] = {
    "ddp": by_ddp,
    "optimizer": by_optimizer,
    "fsdp": by_fsdp,
    "replicas": by_replicas,
}


def everything(rank: int) -> dict[tuple[str, ...], Weights]:
    told = {("torch", form): with_momentum(rank, memory) for form, memory in MEMORIES.items()}
    ways = {
        (way, dense, form): train_it(rank, {"memory": memory, "min_numel": 64, **options})
        for way, train_it in WAYS.items()
        for dense, options in DENSE.items()
        for form, memory in MEMORIES.items()
    }
    return {**told, **ways}
