"""Work of the ranks in the tests of the settings of torch's wrappers and optimizers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

from gradwire.contrib.fsdp1 import compress_fsdp1
from gradwire.frontends.ddp import compress_ddp
from gradwire.frontends.fsdp import compress_fsdp
from gradwire.frontends.optimizer import compress_optimizer
from tests.integrations.jobs import STREAMS, answers

SIZE = 24


class Net(nn.Module):
    """Two layers with a norm that has buffers, and one layer that is not used."""

    def __init__(self, *, spare: bool = False) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(SIZE, SIZE), nn.BatchNorm1d(SIZE), nn.Linear(SIZE, SIZE)
        self.spare = nn.Linear(SIZE, SIZE) if spare else None

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)))


def net(**options: bool) -> Net:
    torch.manual_seed(5)
    return Net(**options)


def train(model: nn.Module, rank: int, steps: int = 3) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.randn(8, SIZE, generator=torch.Generator().manual_seed(10 * step + rank))
        model(x).square().mean().backward()
        optimizer.step()
    return [param.detach().clone() for param in model.parameters()]


def ddp_settings() -> dict[str, dict[str, Any]]:
    """A value of each setting of DDP other than the default; those that this torch does not have are left out."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    wanted: dict[str, dict[str, Any]] = {
        "module": {},
        "device_ids": {"device_ids": None},
        "output_device": {"output_device": None},
        "dim": {"dim": 1},
        "broadcast_buffers": {"broadcast_buffers": False},
        "init_sync": {"init_sync": False},
        "process_group": {"process_group": dist.new_group([0, 1])},
        "bucket_cap_mb": {"bucket_cap_mb": 0.001},
        "find_unused_parameters": {"find_unused_parameters": True},
        "check_reduction": {"check_reduction": True},
        "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
        "static_graph": {"static_graph": True},
        "device_mesh": {"device_mesh": mesh},
        "skip_all_reduce_unused_params": {"skip_all_reduce_unused_params": True},
        "bucket_cap_mb_list": {"bucket_cap_mb_list": [1, 2]},
        "batched_grad_copy": {"batched_grad_copy": True},
        "forward_sync_buffers": {"forward_sync_buffers": False},
        "lazy_bucket_allocation": {"lazy_bucket_allocation": True},
    }
    known = inspect.signature(DistributedDataParallel).parameters
    return {name: options for name, options in wanted.items() if name in known}


def ddp(rank: int) -> dict[str, bool]:
    """Return whether DDP with each setting ends where it does alone, bit for bit, when nothing is compressed."""
    told = {}
    for name, options in ddp_settings().items():
        spare = name == "find_unused_parameters"
        alone = train(DistributedDataParallel(net(spare=spare), **options), rank)
        model = DistributedDataParallel(net(spare=spare), **options)
        state = compress_ddp(model, "none")
        told[name] = all(map(torch.equal, train(model, rank), alone)) and state.metrics()["steps"] == 3
        state.close()
    return told


def delayed(rank: int) -> dict[str, Any]:
    model = net()
    late = [("second.weight", model.second.weight)]
    wrapped = DistributedDataParallel(
        model, delay_all_reduce_named_params=late, param_to_hook_all_reduce=model.first.weight
    )
    state = compress_ddp(wrapped, "none")
    train(wrapped, rank, 1)
    told = {"kept": sorted(state.sizes), "sent": state.metrics()["dense_bytes"]}
    state.close()
    return told


def fsdp1_settings() -> dict[str, dict[str, Any]]:
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16)
    return {
        "module": {},
        "process_group": {"process_group": dist.new_group([0, 1])},
        "sharding_strategy": {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
        "cpu_offload": {
            "cpu_offload": CPUOffload(offload_params=False)
        },  # True pins memory, for which there must be a GPU.
        "auto_wrap_policy": {"auto_wrap_policy": ModuleWrapPolicy({nn.Linear})},
        "backward_prefetch": {"backward_prefetch": BackwardPrefetch.BACKWARD_POST},
        "mixed_precision": {"mixed_precision": half},
        "param_init_fn": {"param_init_fn": lambda _: None},
        "device_id": {"device_id": torch.device("cpu")},
        "sync_module_states": {"sync_module_states": False},
        "forward_prefetch": {"forward_prefetch": True},
        "limit_all_gathers": {"limit_all_gathers": False},
        "use_orig_params": {"use_orig_params": True},
        "device_mesh": {"device_mesh": mesh},
    }


def fsdp1(rank: int) -> dict[str, bool]:
    told = {}
    for name, options in fsdp1_settings().items():
        options = {"device_id": torch.device("cpu"), **options}
        alone = train(FullyShardedDataParallel(net(), **options), rank)
        model = FullyShardedDataParallel(net(), **options)
        state = compress_fsdp1(model, "none")
        pairs = zip(train(model, rank), alone, strict=True)
        told[name] = all(torch.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in pairs)
        state.close()
    return told


class Table(nn.Module):
    """A table of which each rank has a part of its own, beside what all ranks share."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.net, self.own = net(), nn.Module()
        self.own.table = nn.Parameter(torch.ones(3 + rank, SIZE))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + self.own.table.sum(0)


def ignored(rank: int) -> dict[str, Any]:
    told = {}
    device, mesh = torch.device("cpu"), dist.device_mesh.init_device_mesh("cpu", (2,))
    for form in ("ignored_params", "ignored_states", "ignored_modules"):
        model: nn.Module = Table(rank)
        table = model.own.table
        if form == "ignored_params":
            fully_shard(model, mesh=mesh, ignored_params={table})
            state: Any = compress_fsdp(model, "qsgd", min_numel=1, exclude=["own"])
        else:
            left = {form: [table] if form == "ignored_states" else [model.own]}
            model = FullyShardedDataParallel(model, device_id=device, **left)
            state = compress_fsdp1(model, "qsgd", min_numel=1)
        x = torch.randn(8, SIZE, generator=torch.Generator().manual_seed(rank))
        model(x).sum().backward()
        own = torch.equal(table.grad, torch.full_like(table, 8.0))
        told[form] = {"own": own, "kept": [name for name in state.sizes if "own" in name]}
        told[form]["sent"] = state.metrics()["bytes_sent"] > 0
        state.close()
    return told


def dimensions(rank: int) -> bool:
    """Return whether ``fully_shard`` on a mesh that names its data-parallel dimensions ends where it does alone."""
    from torch.distributed import fsdp

    if not hasattr(fsdp, "DataParallelMeshDims"):
        return True  # Not before torch 2.13.
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))

    def trained(method: str | None) -> list[Tensor]:
        torch.manual_seed(5)
        model = nn.Linear(SIZE, SIZE, bias=False)
        model.weight = nn.Parameter(distribute_tensor(model.weight.data, mesh, [Replicate()] * 2))
        fully_shard(model, mesh=mesh, dp_mesh_dims=fsdp.DataParallelMeshDims(shard="dp"))  # type: ignore[call-arg]
        state = None if method is None else compress_fsdp(model, method)
        x = torch.randn(8, SIZE, generator=torch.Generator().manual_seed(rank))
        model(distribute_tensor(x, mesh, [Replicate()] * 2, src_data_rank=None)).square().mean().backward()
        if state is not None:
            state.close()
        return [cast(Any, param.grad).to_local() for param in model.parameters()]

    return all(map(torch.equal, trained("none"), trained(None)))


WITH_STREAMS = {"mixed_precision", "the same after a forward pass"}
"""Cases in which torch itself makes a stream."""


def refused(rank: int) -> dict[str, str]:
    """Settings of torch's wrappers and optimizers that cannot work."""
    half = _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    early, loop, used, ready, compressed = (net() for _ in range(5))
    for model in (early, loop, ready):
        _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    forwarded = DistributedDataParallel(ready)
    if STREAMS:
        forwarded(torch.randn(4, SIZE))
    late = DistributedDataParallel(compressed)
    compress_ddp(late, "none")
    _apply_optimizer_in_backward(torch.optim.SGD, compressed.parameters(), {"lr": 0.1})
    table = nn.Sequential(nn.Embedding(9, SIZE, sparse=True), nn.Linear(SIZE, SIZE))
    mesh, device = dist.device_mesh.init_device_mesh("cpu", (2,)), torch.device("cpu")
    shards = fully_shard(table, mesh=mesh)
    first = FullyShardedDataParallel(nn.Sequential(nn.Embedding(9, SIZE, sparse=True)), device_id=device)
    searching = torch.optim.LBFGS(used.parameters())
    state = compress_optimizer(searching, used, "none")
    cases: dict[str, Callable[[], object]] = {
        "mixed_precision": lambda: compress_ddp(DistributedDataParallel(net(), mixed_precision=half)),
        "optimizer in backward": lambda: compress_ddp(DistributedDataParallel(early)),
        "the same after a forward pass": lambda: compress_ddp(forwarded),
        "the same after compress_ddp": lambda: late(torch.randn(4, SIZE)),
        "the same in a plain loop": lambda: compress_optimizer(torch.optim.SGD(loop.parameters()), loop),
        "skip_all_reduce_unused_params": lambda: compress_ddp(
            DistributedDataParallel(net(), find_unused_parameters=True, skip_all_reduce_unused_params=True)
        ),
        "sparse under fully_shard": lambda: compress_fsdp(shards, "qsgd"),
        "sparse under FSDP1": lambda: compress_fsdp1(first, "qsgd"),
        "LBFGS": lambda: searching.step(lambda: 0.0),
    }
    told = answers({case: call for case, call in cases.items() if STREAMS or case not in WITH_STREAMS})
    state.close()
    return told


def optimizer_classes() -> dict[str, type[torch.optim.Optimizer]]:
    """Every optimizer of torch, by name."""
    base = torch.optim.Optimizer
    found = {name: each for name, each in vars(torch.optim).items() if inspect.isclass(each) and issubclass(each, base)}
    return {name: each for name, each in found.items() if each is not base}


def optimizers(rank: int) -> dict[str, bool]:
    """Return whether each optimizer ends where it would if it were given the mean of all gradients by hand."""
    told = {}
    for name, cls in optimizer_classes().items():
        if name == "LBFGS":
            continue
        told[name] = all(map(torch.equal, steps(cls, rank, ours=True), steps(cls, rank, ours=False)))
    return told


def steps(cls: type[torch.optim.Optimizer], rank: int, *, ours: bool) -> list[Tensor]:
    torch.manual_seed(7)
    rows = cls.__name__ == "SparseAdam"
    model = nn.Embedding(9, SIZE, sparse=True) if rows else nn.Linear(SIZE, SIZE, bias=False)
    optimizer: Any = cls(model.parameters(), lr=0.01)  # type: ignore[call-arg]
    state = compress_optimizer(optimizer, model, "none") if ours else None
    for step in range(2):
        optimizer.zero_grad()
        drawn = torch.Generator().manual_seed(10 * step + rank)
        x = torch.randint(9, (4,), generator=drawn) if rows else torch.randn(4, SIZE, generator=drawn)
        model(x).square().mean().backward()
        if not ours:
            grad = model.weight.grad.coalesce() if rows else model.weight.grad
            (grad.values() if rows else grad).mul_(0.5)
            dist.all_reduce(grad)
            model.weight.grad = grad
        optimizer.step()
    if state is not None:
        state.close()
    return [param.detach().clone() for param in model.parameters()]
