"""Work of the ranks in the tests over NCCL, beside DDP: plain loops, checkpoints, sharded models."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from gradwire.frontends.ddp import compress_ddp
from gradwire.frontends.fsdp import compress_fsdp
from gradwire.frontends.optimizer import compress_optimizer
from tests.integrations.checkpoint_jobs import through_a_file
from tests.integrations.fsdp_jobs import sharded, whole
from tests.integrations.jobs import batch, digest, model_of


def on_gpu(step: int, rank: int) -> tuple[Tensor, Tensor]:
    x, y = batch(step, rank)
    return x.cuda(), y.cuda()


def loop(rank: int) -> str:
    """A plain loop, whose exchange must use the stream and the device of its caller."""
    model = model_of().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compress_optimizer(optimizer, model, "topk", ratio=0.1, min_numel=128, bucket_mb=0.02)
    with torch.cuda.stream(torch.cuda.Stream()):
        for step in range(5):
            x, y = on_gpu(step, rank)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    torch.cuda.synchronize()
    return digest(model)


def resumed(rank: int) -> bool:
    """Resume where the state was loaded on another stream than that of the exchange that takes it over."""

    def start() -> tuple[DistributedDataParallel, Any]:
        model = DistributedDataParallel(model_of().cuda(), bucket_cap_mb=0.02)
        return model, compress_ddp(model, "topk", ratio=0.1, min_numel=128, strategy="two_phase")

    def train(model: nn.Module, steps: range) -> str:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in steps:
            x, y = on_gpu(step, rank)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        return digest(model)

    model, state = start()
    train(model, range(3))
    weights, saved = through_a_file(model.state_dict()), through_a_file(state.state_dict())
    unbroken = train(model, range(3, 6))
    again, fresh = start()
    fresh.load_state_dict(saved)
    again.load_state_dict(weights)
    return train(again, range(3, 6)) == unbroken


def sharded_model(rank: int) -> dict[str, list[Tensor]]:
    """FSDP2 by itself and with gradwire around it: on the GPU, offloaded to the CPU, and reduced in 16 bits."""
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    ways: dict[str, dict[str, Any]] = {
        "gpu": {},
        "offloaded": {"offload_policy": CPUOffloadPolicy()},
        "mixed": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)},
    }
    return {
        f"{name}/{method}": steps_of(rank, mesh, method, options)
        for name, options in ways.items()
        for method in (None, "none", "topk")
    }


def steps_of(rank: int, mesh: DeviceMesh, method: str | None, options: dict[str, Any]) -> list[Tensor]:
    model = sharded(mesh, **options)
    if "offload_policy" not in options:
        model.cuda()
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    if method is not None:
        compress_fsdp(model, method, min_numel=0, scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x, y = on_gpu(step, rank)
        nn.functional.cross_entropy(model(x).float(), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [cast(DTensor, param).to_local().detach().cpu() for param in model.parameters()]


def replicas(rank: int) -> list[Tensor]:
    """Hybrid sharding in 16 bits: FSDP drops its buffers on another stream than that of the hook."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cuda", (world, 1), mesh_dim_names=("replicate", "shard"))
    model = sharded(mesh["shard"], mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)).cuda()
    compress_fsdp(model, "powersgd", rank=2, replicate=mesh["replicate"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x, y = on_gpu(step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x).float(), y).backward()
        optimizer.step()
    return [param.detach().cpu() for param in whole(model).values()]
