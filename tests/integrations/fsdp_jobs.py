"""Work of the ranks in the FSDP tests; each function is one launch."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

import gradwire
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.contrib.fsdp1 import compress_fsdp1
from gradwire.frontends.fsdp import FSDPState, compress_fsdp
from gradwire.memory.averaged_error import AveragedError
from gradwire.memory.base import Memory
from gradwire.memory.dgc import DGCMemory
from tests.integrations.checkpoint_jobs import through_a_file
from tests.integrations.jobs import answers, batch, loss_of, model_of

FLAT: dict[str, dict[str, Any]] = {
    "none": {},
    "fp16": {},
    "qsgd": {"bits": 4, "memory": "residual"},
    "topk": {"ratio": 0.1},
    "twobit": {"threshold": "auto"},
    "onebit": {"scale": "mean"},
    "dgc": {"ratio": 0.1, "exclude": ["6.*"], "memory": DGCMemory(momentum=0.5)},
}
HYBRID: dict[str, dict[str, Any]] = {
    "none": {},
    "powersgd": {"rank": 4},
    "topk": {"ratio": 0.1},
    "qsgd": {"strategy": "two_phase"},
}
STEPS, RATE = 6, 0.4


def sharded(mesh: DeviceMesh, **options: Any) -> nn.Module:
    model = model_of()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def whole(model: nn.Module) -> dict[str, Tensor]:
    return {name: param.full_tensor().detach() for name, param in model.named_parameters()}


def plain(model: nn.Module) -> nn.Module:
    """The same parameters in a model that is not sharded."""
    copy = model_of()
    copy.load_state_dict(whole(model))
    return copy


def train(model: nn.Module, steps: range, rank: int, momentum: float = 0.5) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
    for step in steps:
        x, y = batch(step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x).float(), y).backward()
        optimizer.step()
    return [param.detach().clone() for param in whole(model).values()]


def compare(rank: int, mesh: DeviceMesh, replicate: DeviceMesh | None, methods: dict[str, Any]) -> dict[str, Any]:
    told = {}
    for name, options in {"plain": {}, **methods}.items():
        model = sharded(mesh)
        state = compress_fsdp(model, name, replicate=replicate, min_numel=64, **options) if name != "plain" else None
        if state is None and replicate is not None:
            model = sharded(init_device_mesh("cpu", (replicate.size(), mesh.size()), mesh_dim_names=("r", "s")))
        own = state is not None and "momentum" in state.exchange.methods.buffers("buffers")
        weights = train(model, range(STEPS), rank, momentum=0.0 if own else 0.5)
        told[name] = {"weights": weights, "loss": loss_of(plain(model)), "metrics": state.metrics() if state else {}}
    return told


def flat(rank: int) -> dict[str, Any]:
    """Sharding over all ranks: each method against FSDP alone; and what else is asked of it."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    told = {
        "compared": compare(rank, mesh, None, {name: FLAT[name] for name in flat_methods(world)}),
        "conserved": conserved(rank, mesh),
        "overflow": overflow(rank, mesh),
        "resumed": resumed(rank, mesh),
    }
    if world == 2:
        told |= {"again": again(rank, mesh)}
        told |= {"refused": refused(mesh), "mixed": mixed(rank, mesh), "accumulated": accumulated(rank, mesh)}
        told |= {"warm": warm(rank, mesh)}
    return told


def flat_methods(world: int) -> list[str]:
    """On three ranks, over which rows do not divide, those that differ in what is kept."""
    return [name for name in FLAT if world == 2 or name in ("none", "topk", "dgc")]


def hybrid(rank: int) -> dict[str, Any]:
    """Sharding inside halves of the group, and the compressed mean between them."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    return compare(rank, mesh["shard"], mesh["replicate"], HYBRID)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: param.grad.full_tensor() for name, param in model.named_parameters()}


def conserved(rank: int, mesh: DeviceMesh) -> float:
    """The largest difference between the gradients put in and what came out or waits, rows that do not divide too."""
    model = sharded(mesh)
    state = compress_fsdp(model, "topk", ratio=0.1, min_numel=0)
    put = {name: torch.zeros_like(tensor) for name, tensor in whole(model).items()}
    got = {name: torch.zeros_like(tensor) for name, tensor in put.items()}
    for step in range(3):
        x, y = batch(step, rank)
        local = plain(model)
        nn.functional.cross_entropy(local(x), y).backward()
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        for name, param in local.named_parameters():
            put[name] += param.grad
        for name, tensor in gradients(model).items():
            got[name] += tensor
    worst = 0.0
    for name, total in put.items():
        left = state.exchange.residuals.worker["residual"][name][: total.numel()].view(total.shape)
        mean = (total - left) / dist.get_world_size()
        dist.all_reduce(mean)
        worst = max(worst, float((mean - got[name]).abs().max()))
    return worst


def overflow(rank: int, mesh: DeviceMesh) -> dict[str, Any]:
    """One rank's gradient of one layer is infinite: all ranks get NaN there, and no residual moves."""
    found = [overflow_with(rank, mesh, *way) for way in (("topk", None), ("qsgd", AveragedError(block=16)))]
    assert found[0] == found[1]
    return found[0]


def overflow_with(rank: int, mesh: DeviceMesh, method: str, memory: Memory | None) -> dict[str, Any]:
    model = sharded(mesh)
    state = compress_fsdp(model, method, memory=memory, min_numel=0, scaler=torch.amp.GradScaler("cpu"))
    finite, same = [], None
    for step in range(4):
        x, y = batch(step, rank)
        model.zero_grad()
        before = {name: tensor.clone() for name, tensor in state.exchange.residuals.worker.get("residual", {}).items()}
        loss = nn.functional.cross_entropy(model(x), y)
        (loss * (float("inf") if (step, rank) == (2, 1) else 1.0)).backward()
        finite.append(all(bool(param.grad.to_local().isfinite().all()) for param in model.parameters()))
        if step == 2:
            state.state_dict()
            after = state.exchange.residuals.worker["residual"]
            same = all(torch.equal(after[name], tensor) for name, tensor in before.items())
    return {"finite": finite, "same": same, "count": state.metrics()["nonfinite_steps"]}


def resumed(rank: int, mesh: DeviceMesh) -> bool:
    return all(resumed_with(rank, mesh, memory) for memory in ("residual", AveragedError(block=16)))


def resumed_with(rank: int, mesh: DeviceMesh, memory: Memory | str) -> bool:
    def start() -> tuple[nn.Module, FSDPState]:
        model = sharded(mesh)
        return model, compress_fsdp(model, "qsgd", bits=4, memory=memory, min_numel=0)

    model, state = start()
    train(model, range(2), rank)
    saved, weights = through_a_file(state.state_dict()), whole(model)
    unbroken = train(model, range(2, 4), rank)
    again, fresh = start()
    with torch.no_grad():
        for name, param in again.named_parameters():
            assert isinstance(param, DTensor)
            rows = weights[name].chunk(mesh.size())
            param.to_local().copy_(rows[rank] if rank < len(rows) else weights[name][:0])
    fresh.load_state_dict(saved)
    return all(torch.equal(*pair) for pair in zip(unbroken, train(again, range(2, 4), rank), strict=True))


def again(rank: int, mesh: DeviceMesh) -> dict[str, Any]:
    """A state is loaded, and the memory changed, after steps were made: the next step is of what is kept then."""

    def gradient(step: int) -> list[Tensor]:
        x, y = batch(step, rank)
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        return list(gradients(model).values())

    model = sharded(mesh)
    state = compress_fsdp(model, "qsgd", bits=4, memory="residual", min_numel=0)
    gradient(0)
    saved = through_a_file(state.state_dict())
    unbroken = [gradient(1), gradient(2)]
    state.load_state_dict(saved)
    same = [
        torch.equal(*pair)
        for each, step in zip(unbroken, (1, 2), strict=True)
        for pair in zip(each, gradient(step), strict=True)
    ]
    state.change("qsgd", bits=4, memory="none", drop=True)
    gradient(3)
    none = state.metrics()["residual_norm"]
    state.change("qsgd", bits=4, memory="residual")
    gradient(4)
    return {"same": all(same), "none": none, "some": state.metrics()["residual_norm"]}


def warm(rank: int, mesh: DeviceMesh) -> list[float]:
    """Dense steps are dense for overridden parameters, too: bytes over dense bytes after each step."""
    model = sharded(mesh)
    overrides = {"*.weight": TwoBit(threshold=1e-3)}
    state, ratios = compress_fsdp(model, "none", overrides=overrides, start_after=2, min_numel=0), []
    for step in range(3):
        train(model, range(step, step + 1), rank)
        ratios.append(state.metrics()["ratio"])
    return ratios


def mixed(rank: int, mesh: DeviceMesh) -> dict[str, Any]:
    told = {}
    for dtype in (torch.bfloat16, torch.float16):
        model = sharded(mesh, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
        state = compress_fsdp(model, "qsgd", bits=4, memory="residual", min_numel=64)
        train(model, range(STEPS), rank)
        told[str(dtype)] = {"loss": loss_of(plain(model)), "ratio": state.metrics()["ratio"]}
    return told


def accumulated(rank: int, mesh: DeviceMesh) -> int:
    """Three micro-batches, one exchange."""
    model = sharded(mesh)
    assert isinstance(model, FSDPModule)
    state = compress_fsdp(model, "qsgd")
    for step in range(3):
        model.set_requires_gradient_sync(step == 2)
        x, y = batch(step, rank)
        nn.functional.cross_entropy(model(x), y).backward()
    return int(state.metrics()["steps"])


def first_form(rank: int) -> dict[str, Any]:
    """FSDP1 with and without gradwire: the flat parameters of three modules, whose sizes do not divide."""
    told: dict[str, Any] = {}
    for name, options in {"plain": {}, "none": {}, "qsgd": {"bits": 4, "memory": "residual"}}.items():
        model = model_of()
        model[2] = FullyShardedDataParallel(model[2], device_id=torch.device("cpu"))
        model[4] = FullyShardedDataParallel(model[4], device_id=torch.device("cpu"))
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        state = compress_fsdp1(model, name, min_numel=0, **options) if name != "plain" else None
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)
        for step in range(STEPS):
            x, y = batch(step, rank)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with FullyShardedDataParallel.summon_full_params(model):
            weights = torch.cat([param.detach().flatten() for param in model.parameters()]).clone()
        copy = model_of()
        nn.utils.vector_to_parameters(weights, copy.parameters())
        loss = loss_of(copy)
        told[name] = {"weights": weights, "loss": loss, "metrics": state.metrics() if state else {}}
        told[name]["residuals"] = sorted(state.exchange.residuals.worker.get("residual", {})) if state else []
    flat = FullyShardedDataParallel(
        model_of(), device_id=torch.device("cpu"), sharding_strategy=ShardingStrategy.NO_SHARD
    )
    return told | answers(
        {
            "not wrapped": lambda: compress_fsdp1(model_of(), "qsgd"),
            "no shard": lambda: compress_fsdp1(flat, "qsgd"),
        }
    )


def refused(mesh: DeviceMesh) -> dict[str, str]:
    state = compress_fsdp(sharded(mesh), "qsgd", memory="residual")
    calls = {
        "not sharded": lambda: compress_fsdp(model_of(), "qsgd"),
        "rounds": lambda: compress_fsdp(sharded(mesh), "powersgd"),
        "size": lambda: compress_fsdp(sharded(mesh), "strom"),
        "memory": lambda: compress_fsdp(sharded(mesh), "ef21"),
        "change": lambda: state.change("strom", threshold=1e-3),
        "replicas": lambda: state.load_state_dict({"version": 1, "world": 2, "step": 0, "shards": 1, "parts": {}}),
    }
    return answers(calls)


RECUT: dict[str, dict[str, Any]] = {"topk": {"ratio": 0.1}, "qsgd": {"bits": 4, "memory": "residual"}}
BETWEEN: dict[str, dict[str, Any]] = {"powersgd": {"rank": 4}, "qsgd": {"strategy": "two_phase", "memory": "residual"}}


def first(rank: int, way: str, method: str, world: int) -> tuple[nn.Module, Any]:
    """A model of one of the three ways to shard, and its state."""
    if way == "fsdp1":
        model = FullyShardedDataParallel(model_of(), device_id=torch.device("cpu"))
        return model, compress_fsdp1(model, method, min_numel=0, **RECUT[method])
    if way == "flat":
        model = sharded(init_device_mesh("cpu", (world,)))
        return model, compress_fsdp(model, method, min_numel=0, **RECUT[method])
    shards = int(way)
    mesh = init_device_mesh("cpu", (world // shards, shards), mesh_dim_names=("r", "s"))
    model = sharded(mesh["s"])
    return model, compress_fsdp(model, method, replicate=mesh["r"], min_numel=64, **BETWEEN[method])


def steps_of(model: nn.Module, steps: range, rank: int) -> None:
    for step in steps:
        x, y = batch(step, rank)
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()


def save_cut(rank: int, ways: list[tuple[str, str]], folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Steps, a distributed checkpoint, and this rank's state."""
    told = {}
    for way, method in ways:
        model, state = first(rank, way, method, dist.get_world_size())
        steps_of(model, range(2), rank)
        dcp.save({"gradwire": state}, checkpoint_id=f"{folder}/{way}-{method}")
        told[way, method] = state.state_dict()
    return told


def load_cut(rank: int, ways: list[tuple[str, str, str]], folder: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Each checkpoint on these ranks: the error, what there is after resharding, that it goes on, and after a reset."""
    told: dict[tuple[str, str, str], dict[str, Any]] = {}
    for saved, way, method in ways:
        model, state = first(rank, way, method, dist.get_world_size())
        read = gradwire.read_checkpoint(f"{folder}/{saved}-{method}")
        told[saved, way, method] = mine = answers({"error": partial(state.load_state_dict, read)})
        state.load_state_dict(read, on_resize="reshard")
        mine["state"] = through_a_file(state.state_dict())
        steps_of(model, range(2, 3), rank)
        mine["steps"] = state.metrics()["steps"]
        state.load_state_dict(read, on_resize="reset")
        mine["reset"] = state.metrics()["residual_norm"]
    return told
