"""Work of the ranks in the tests of mistakes with sharded models; each function is one launch of 2 x 2 ranks."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from torch.nn.parallel import DistributedDataParallel

from gradwire.contrib.fsdp1 import compress_fsdp1
from gradwire.frontends.ddp import compress_ddp
from gradwire.frontends.fsdp import compress_fsdp
from gradwire.frontends.optimizer import compress_optimizer
from gradwire.optim import OneBitAdam
from tests.heard import without_name
from tests.integrations.fsdp_jobs import sharded
from tests.integrations.jobs import answers, batch, model_of

Call = Callable[[nn.Module], object]


class Warned(logging.Handler):
    """Keeps what gradwire warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(without_name(record.getMessage()))


def values(model: nn.Module) -> list[Tensor]:
    return [getattr(param, "_local_tensor", param).detach().clone() for param in model.parameters()]


def apart(model: nn.Module, rank: int) -> nn.Module:
    """Parameters that differ from rank to rank, so that none can be overwritten unseen."""
    with torch.no_grad():
        for param in model.parameters():
            getattr(param, "_local_tensor", param).add_(rank + 1)
    return model


def outcome(model: nn.Module, call: Call) -> tuple[str, bool]:
    """The error of the call, and true if the parameters are as they were."""
    before = values(model)
    said = answers({"": lambda: call(model)})[""]
    return said, all(torch.equal(*pair) for pair in zip(before, values(model), strict=True))


def hook(output: Tensor) -> None:
    output.zero_()


class Theirs(DefaultReduceScatter):
    """A reduce-scatter of somebody else."""


def hooked(model: nn.Module) -> nn.Module:
    model[2].set_all_reduce_hook(hook)
    return model


def scattered(model: nn.Module) -> nn.Module:
    model[2].set_custom_reduce_scatter(Theirs())
    return model


def fsdp2(rank: int) -> dict[str, tuple[str, bool]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    every = init_device_mesh("cpu", (4,))
    crossed = DeviceMesh("cpu", [[0, 3], [2, 1]], mesh_dim_names=("a", "b"))["b"]
    others = DeviceMesh("cpu", [0, 1])
    model = lambda: apart(sharded(mesh["shard"]), rank)  # noqa: E731
    others_optimizer = sgd(model_of())
    with_replicas: dict[str, Any] = {
        "shard": mesh["shard"],
        "every rank": every,
        "other rows": crossed,
        "without this rank": others,
        "a group": mesh["replicate"].get_group(),
        "two dimensions": mesh,
        "a name": "replicate",
        "a flag": True,
    }
    told = {
        name: outcome(model(), functools.partial(compress_fsdp, compressor="topk", replicate=replicate))
        for name, replicate in with_replicas.items()
    }
    right = {"replicate": mesh["replicate"]}
    told |= {
        "left out": outcome(model(), lambda m: compress_fsdp(m, "qsgd")),
        "native hybrid": outcome(apart(sharded(mesh), rank), lambda m: compress_fsdp(m, "qsgd", **right)),
        "native, elsewhere": outcome(apart(sharded(mesh), rank), lambda m: compress_fsdp(m, "qsgd", replicate=False)),
        "replicas alone": outcome(replicate(model_of(), mesh=every), lambda m: compress_fsdp(m, "qsgd")),
        "hook": outcome(hooked(model()), lambda m: compress_fsdp(m, "topk", **right)),
        "strategy": outcome(sharded(every), lambda m: compress_fsdp(m, "qsgd", strategy="two_phase")),
        "memory": outcome(sharded(every), lambda m: compress_fsdp(m, "eden", memory="preconditioned")),
        "scatter": outcome(scattered(model()), lambda m: compress_fsdp(m, "topk", **right)),
        "process_group": outcome(model(), lambda m: compress_fsdp(m, process_group=dist.group.WORLD, **right)),
        "swapped": outcome(model(), lambda m: compress_fsdp("topk", m, **right)),
        "class": outcome(model_of(), lambda _: compress_fsdp(nn.Linear)),
        "plain": outcome(model_of(), compress_fsdp),
        "ddp": outcome(DistributedDataParallel(model_of()), compress_fsdp),
        "fsdp1": outcome(FullyShardedDataParallel(model_of(), device_id=torch.device("cpu")), compress_fsdp),
        "two meshes": outcome(two_meshes(mesh["shard"], every), lambda m: compress_fsdp(m, replicate=False)),
        "two meshes with replicas": outcome(two_meshes(mesh, mesh["shard"]), lambda m: compress_fsdp(m, "qsgd")),
        "others' optimizer": outcome(model(), lambda m: compress_fsdp(m, lr_correction=others_optimizer, **right)),
        "one rank": outcome(model(), lambda m: compress_fsdp(m, "topk", scaler=1 if rank == 3 else None, **right)),
        "one shard": outcome(model(), lambda m: compress_fsdp(m, "topk", ratio=0.1 if rank % 2 else 0.2, **right)),
    }
    for name, options in {"twice": {}, "twice with replicas": right}.items():
        twice = sharded(mesh["shard"] if options else every)
        compress_fsdp(twice, "qsgd", **options)
        told[name] = outcome(twice, lambda m, given=options: compress_fsdp(m, "topk", **given))
    for name, call in elsewhere().items():
        told[name] = outcome(sharded(mesh), call)
    return told


def elsewhere() -> dict[str, Call]:
    """Calls for models that are not sharded, given one of FSDP's own hybrid sharding."""
    return {
        "compress_ddp": lambda model: compress_ddp(model, "topk"),
        "compress_optimizer": lambda model: compress_optimizer(sgd(model), model, "topk"),
        "OneBitAdam": lambda model: OneBitAdam(model.parameters(), freeze_step=1),
    }


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def two_meshes(one: DeviceMesh, other: DeviceMesh) -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fully_shard(model[0], mesh=other)
    return fully_shard(model, mesh=one)


def smaller(rank: int) -> dict[str, tuple[list[str], str]]:
    """Meshes of half of the ranks, by the names of the other dimension: what is warned of, and what is raised."""
    log, told = logging.getLogger("gradwire"), {}
    for name in ("tp", "pp", "dp", "dp_replicate", "outer", None, "meant"):
        names = ("dp" if name == "meant" else name, "inner") if name is not None else None
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
        line = mesh["inner"] if names is not None else DeviceMesh.from_group(halves()[rank // 2], "cpu")
        model, handler = fully_shard(model_of(), mesh=line), Warned()
        log.addHandler(handler)
        options: dict[str, Any] = {"replicate": False} if name == "meant" else {}
        said = outcome(model, functools.partial(compress_fsdp, compressor="qsgd", **options))[0]
        log.removeHandler(handler)
        told[str(name)] = (handler.said, said)
    return told


@functools.cache
def halves() -> list[Any]:
    return [dist.new_group([0, 1]), dist.new_group([2, 3])]


def closed(rank: int) -> dict[str, Any]:
    """After ``close`` a backward pass is an error, and another state takes the place, of either kind."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    told: dict[str, Any] = {}
    for name in ("replicas", "alone", "fsdp1"):
        model: nn.Module
        if name == "fsdp1":
            model = FullyShardedDataParallel(model_of(), device_id=torch.device("cpu"))
            kinds: list[Callable[[], Any]] = [lambda m=model: compress_fsdp1(m, "qsgd")] * 2
        else:
            model = sharded(mesh["shard"])
            ways = [mesh["replicate"], False] if name == "replicas" else [False, mesh["replicate"]]
            kinds = [lambda m=model, r=way: compress_fsdp(m, "qsgd", replicate=r) for way in ways]
        kinds[0]().close()
        told[name] = answers({"": lambda m=model: step(m, rank)})[""]
        model.zero_grad()
        state = kinds[1]()
        step(model, rank)
        told[name, "steps"] = state.metrics()["steps"]
    return told


def step(model: nn.Module, rank: int) -> None:
    x, y = batch(0, rank)
    nn.functional.cross_entropy(model(x), y).backward()


def fsdp1(rank: int) -> dict[str, tuple[str, bool]]:
    cpu, halves_ = torch.device("cpu"), halves()

    def wrapped(**options: Any) -> FullyShardedDataParallel:
        return FullyShardedDataParallel(model_of(), device_id=cpu, **options)

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    hybrid = wrapped(sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)
    nested = model_of()
    nested[2] = FullyShardedDataParallel(nested[2], device_id=cpu, process_group=halves_[rank // 2])
    hooked = wrapped()
    hooked.register_comm_hook(None, mine)
    told = {
        "hybrid": outcome(hybrid, compress_fsdp1),
        "other ranks": outcome(FullyShardedDataParallel(nested, device_id=cpu), compress_fsdp1),
        "hook": outcome(hooked, compress_fsdp1),
        "process_group": outcome(wrapped(), lambda m: compress_fsdp1(m, process_group=halves_[rank // 2])),
        "swapped": outcome(wrapped(), lambda m: compress_fsdp1("qsgd", m)),
        "class": outcome(model_of(), lambda _: compress_fsdp1(FullyShardedDataParallel)),
        "plain": outcome(model_of(), compress_fsdp1),
        "fsdp2": outcome(sharded(init_device_mesh("cpu", (4,))), compress_fsdp1),
        "not the outermost": outcome(nn.Sequential(wrapped()), compress_fsdp1),
    }
    twice = wrapped()
    compress_fsdp1(twice, "qsgd")
    told["twice"] = outcome(twice, compress_fsdp1)
    handler = Warned()
    logging.getLogger("gradwire").addHandler(handler)
    told["half"] = outcome(wrapped(process_group=halves_[rank // 2]), compress_fsdp1)
    logging.getLogger("gradwire").removeHandler(handler)
    told["half"] = ("; ".join(handler.said), told["half"][1])
    return told


def mine(_: object, grad: Tensor, output: Tensor) -> None:
    output.copy_(grad[: output.numel()])
