"""What the ranks of the test under torchft do: two replicas of two ranks, each of which shards a model."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer

import gradwire
from gradwire.integrations.process_group import CompressingGroup

STEPS = 4
GONE = 2
"""The step from which on the second replica is not there any more."""

PATIENCE = timedelta(seconds=60)


def model_of() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
    return (model(x) - x).square().mean()


def replica_group(rank: int) -> CompressingGroup:
    """The wrapped group of this rank's replica; torch wants all ranks to make all groups."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    return gradwire.wrap_group(groups[rank // 2], "bf16-fp32sum", min_numel=1024)


def manager_of(rank: int) -> tuple[Manager, LighthouseServer | None]:
    """The manager of this rank, and on the first rank the lighthouse at which the replicas meet."""
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=200) if rank == 0 else None
    own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank % 2 == 0 else None
    known: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(known, (lighthouse and lighthouse.address(), own and own.port))
    first = rank - rank % 2
    manager = Manager(
        pg=ProcessGroupGloo(PATIENCE),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=PATIENCE,
        rank=rank % 2,
        world_size=2,
        store_addr="127.0.0.1",
        store_port=known[first][1],
        lighthouse_addr=known[0][0],
        replica_id=f"replica{rank // 2}",
        hostname="127.0.0.1",
        init_sync=False,
    )
    manager.kept = own  # type: ignore[attr-defined]
    return manager, lighthouse


def sharded(group: CompressingGroup, manager: Manager) -> nn.Module:
    """A model in shards over a replica, whose gradients a manager averages between the replicas."""
    model, mesh = model_of(), DeviceMesh.from_group(group, "cpu")
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)

    def between(output: Tensor) -> None:
        manager.allreduce(output).wait()

    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_all_reduce_hook(between)
    return model


def error_of(model: nn.Module, step: int, there: int) -> float:
    """How far gradients are from the mean over so many ranks, relatively."""
    local = model_of()
    for each in range(there):
        (loss_of(local, step, each) / there).backward()
    wanted = torch.cat([param.grad.flatten() for param in local.parameters()])
    found = torch.cat([param.grad.full_tensor().flatten() for param in model.parameters()])
    return float((found - wanted).norm() / wanted.norm())


def managed(rank: int) -> dict[str, Any]:
    """Train; inside a replica on the wrapped group, between replicas by torchft's manager."""
    torch.set_num_threads(1)
    group, (manager, lighthouse) = replica_group(rank), manager_of(rank)
    model = sharded(group, manager)
    told: dict[str, Any] = {"errors": [], "replicas": [], "committed": []}
    for step in range(STEPS):
        there = 4 if step < GONE else 2
        if step == GONE:
            if rank >= there:
                manager.shutdown()
            dist.barrier()
        if rank >= there:
            break
        manager.start_quorum()
        model.zero_grad()
        loss_of(model, step, rank).backward()
        told["replicas"].append(manager.num_participants())
        told["committed"].append(manager.should_commit())
        told["errors"].append(error_of(model, step, there))
    told["metrics"] = group.metrics()
    if rank < 2:
        manager.shutdown()
    dist.barrier()
    if lighthouse is not None:
        lighthouse.shutdown()
    return told
