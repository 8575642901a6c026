"""Work of the ranks in the tests under torchft: replicas of one or two ranks, of which some go."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torchft import DistributedDataParallel, Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.process_group import ProcessGroupDummy

import gradwire
from gradwire.frontends._compressing import CompressingGroup
from tests.integrations.jobs import answers

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


def manager_at(lighthouse: str, port: int, group: Any, replica: int, rank: int, size: int, **options: Any) -> Manager:
    """The manager of a rank.

    Args:
        lighthouse: address of the lighthouse at which the replicas meet.
        port: port of the store of this rank's replica.
        group: process group of torchft's, for the manager.
        replica: number of the replica.
        rank: number of this rank in it.
        size: ranks of a replica.
        options: further arguments of the manager.
    """
    told: dict[str, Any] = {"load_state_dict": None, "state_dict": None, "use_async_quorum": False, **options}
    return Manager(
        pg=group,
        min_replica_size=1,
        timeout=PATIENCE,
        rank=rank,
        world_size=size,
        store_addr="127.0.0.1",
        store_port=port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica{replica}",
        hostname="127.0.0.1",
        init_sync=False,
        **told,
    )


def manager_of(rank: int, group: Any, size: int) -> tuple[Manager, LighthouseServer | None, dist.TCPStore]:
    """The manager of this rank, on the first rank the lighthouse at which the replicas meet, and a store of all ranks.

    Args:
        group: process group of torchft's, for the manager.
        size: ranks of a replica.
    """
    # It waits for replicas that are busy, and no longer for those that have sent no heartbeat for five seconds.
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=30_000) if rank == 0 else None
    own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank % size == 0 else None
    known: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(known, (lighthouse and lighthouse.address(), own and own.port))
    first = rank - rank % size
    manager = manager_at(known[0][0], known[first][1], group, rank // size, rank % size, size)
    manager.kept = own  # type: ignore[attr-defined]
    return manager, lighthouse, own if rank == 0 else dist.TCPStore("127.0.0.1", known[0][1], is_master=False)


def sharded(group: Any, manager: Manager) -> nn.Module:
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
    """The relative distance of gradients from the mean over so many ranks."""
    local = model_of()
    for each in range(there):
        (loss_of(local, step, each) / there).backward()
    wanted = torch.cat([param.grad.flatten() for param in local.parameters()])
    grads = [param.grad for param in model.parameters()]
    found = torch.cat([(each.full_tensor() if isinstance(each, DTensor) else each).flatten() for each in grads])
    return float((found - wanted).norm() / wanted.norm())


def managed(rank: int) -> dict[str, Any]:
    """Train; inside a replica on the wrapped group, between replicas by torchft's manager."""
    torch.set_num_threads(1)
    group, (manager, lighthouse, _) = replica_group(rank), manager_of(rank, ProcessGroupGloo(PATIENCE), 2)
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


LEAVES = {2: 2, 1: 4}
"""The step before which a replica goes: one says so, the other loses its connections in the middle of that step."""

ENDS = 6


def meet(store: dist.TCPStore, place: str, replicas: int) -> None:
    """Wait until so many replicas have come here; torch's own barrier takes a group, and they are in none."""
    if store.add(place, 1) == replicas:
        store.set(f"{place} is full", "")
    store.wait([f"{place} is full"], PATIENCE)


def replicas(rank: int, method: str) -> dict[str, Any]:
    """Train three replicas of one rank under torchft's DDP, with what its manager sends compressed."""
    torch.set_num_threads(1)
    group = gradwire.wrap_group(ProcessGroupGloo(PATIENCE), method, min_numel=1024)
    manager, lighthouse, store = manager_of(rank, group, 1)
    # Each replica is a job of its own; torchft needs no group of all, and neither does what compresses.
    dist.destroy_process_group()
    model = DistributedDataParallel(manager, model_of())
    told: dict[str, Any] = {"replicas": [], "committed": [], "errors": [], "gradients": [], "metrics": []}
    for step in range(ENDS):
        there = 3 - sum(step >= last for last in LEAVES.values())
        if step == LEAVES[2]:
            if rank == 2:
                manager.shutdown()
            meet(store, "the first has gone", 3)
        if step == LEAVES.get(rank) and rank == 2:
            break
        manager.start_quorum()
        if step == LEAVES[1]:
            meet(store, "the second goes", 2)
        if step == LEAVES.get(rank):
            group.abort()
            manager.shutdown()
            break
        model.zero_grad()
        loss_of(model, step, rank).backward()
        told["replicas"].append(manager.num_participants())
        told["committed"].append(manager.should_commit())
        told["metrics"].append(group.metrics())
        if told["committed"][-1]:
            told["gradients"].append([param.grad.clone() for param in model.parameters()])
            told["errors"].append(error_of(model, step, there))
    if rank == 0:
        manager.shutdown()
    meet(store, "the end", 3)
    if lighthouse is not None:
        lighthouse.shutdown()
    return told


def differently(rank: int) -> dict[str, str]:
    """Replicas of different settings, and groups that cannot be wrapped."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    known: list[Any] = [None, None]
    dist.all_gather_object(known, store and store.port)
    group = gradwire.wrap_group(ProcessGroupGloo(PATIENCE), "fp8" if rank == 1 else "bf16")
    wrong = {
        "settings": lambda: group.configure(f"127.0.0.1:{known[0]}/here", f"replica{rank}", rank, 2),
        "kind": lambda: gradwire.wrap_group(ProcessGroupDummy(0, 1), "bf16"),
        "twice": lambda: gradwire.wrap_group(group, "bf16"),
        "timeout": lambda: gradwire.wrap_group(ProcessGroupGloo(PATIENCE), "bf16", timeout=3.0),
        "default": lambda: gradwire.wrap_group(ProcessGroupGloo(PATIENCE), "bf16", default=True),
        "method": lambda: gradwire.wrap_group(ProcessGroupGloo(PATIENCE), "topk"),
    }
    told = answers(wrong)
    group.shutdown()
    dist.barrier()
    return told
