"""Work of the ranks in the tests of the ways to train with FSDP; each function is one launch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.tensor import Shard

import gradwire
from gradwire.contrib.fsdp1 import compress_fsdp1
from gradwire.frontends.adapters._wrapped import exchanged
from gradwire.frontends.fsdp import FSDPState, compress_fsdp
from tests.heard import heard
from tests.integrations.fsdp_jobs import gradients, sharded, whole
from tests.integrations.jobs import answers, asked_inside, batch, model_of
from tests.integrations.ways_jobs import Branches, Tied

Way = Callable[[int, DeviceMesh, str | None], list[Tensor]]
"""Trains, compressed by a method or (None) by FSDP alone; returns the parameters."""


def compressed(model: nn.Module, method: str | None, **options: Any) -> FSDPState | None:
    return compress_fsdp(model, method, min_numel=0, **options) if method is not None else None


def train(model: nn.Module, rank: int, steps: int = 2, micro: int = 1, clip: float = 0.0) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for step in range(steps * micro):
        last = step % micro == micro - 1
        model.set_requires_gradient_sync(last)
        x, y = batch(step, rank)
        nn.functional.cross_entropy(model(x).float(), y).backward()
        if last:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return [param.clone() for param in whole(model).values()]


def meta(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    """Made without memory; the hook is attached before it has any."""
    with torch.device("meta"):
        model = model_of()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    compressed(model, method)
    model.to_empty(device="cpu")
    fill(model)
    return train(model, rank)


def fill(model: nn.Module) -> None:
    values = model_of().state_dict()
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(torch.distributed.tensor.distribute_tensor(values[name], param.device_mesh, param.placements))


def assigned(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    """``load_state_dict(assign=True)`` puts other parameters into the model before the hook is attached."""
    model = sharded(mesh)
    model.load_state_dict({name: 0.5 * tensor for name, tensor in model.state_dict().items()}, assign=True)
    state = compressed(model, method)
    weights = train(model, rank)
    assert state is None or state.metrics()["steps"] == 2
    return weights


def kept_whole(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    model = sharded(mesh, reshard_after_forward=False)
    compressed(model, method)
    return train(model, rank)


def accumulated(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    model = sharded(mesh)
    state = compressed(model, method)
    weights = train(model, rank, micro=3)
    assert state is None or state.metrics()["steps"] == 2
    return weights


def clipped(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    model = sharded(mesh)
    compressed(model, method)
    return train(model, rank, clip=0.05)


def offloaded(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    model = sharded(mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    compressed(model, method)
    return train(model, rank)


def reduced(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    """Computed in bfloat16, reduced in float32."""
    model = sharded(mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    compressed(model, method)
    return train(model, rank)


def several(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    """Each module is reduced in a dtype of its own."""
    model = model_of()
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    for layer, dtype in zip(layers, (torch.bfloat16, torch.float32, torch.float16), strict=False):
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    compressed(model, method)
    return train(model, rank)


def divided(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    """FSDP is told to sum, and divides by itself."""
    model = sharded(mesh)
    for module in model.modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)
    compressed(model, method)
    return train(model, rank)


def small(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    """Fewer rows than ranks, and one row."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 3), nn.Linear(3, 1), nn.Linear(1, 10))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    compressed(model, method)
    return train(model, rank)


def tied(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    model = fully_shard(Tied(), mesh=mesh)
    compressed(model, method)
    return train(model, rank)


def columns(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    """Cut along the last dimension, which the number of ranks divides."""
    model = model_of()

    def last(param: nn.Parameter) -> Shard:
        return Shard(param.dim() - 1 if param.shape[-1] % mesh.size() == 0 else 0)

    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, shard_placement_fn=last)
    fully_shard(model, mesh=mesh, shard_placement_fn=last)
    assert model[2].weight.placements[0].is_shard(1)
    compressed(model, method)
    return train(model, rank)


def checkpointed(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    """Activations are computed again in the backward pass."""
    model = model_of()
    for name in ("0", "2", "4"):
        setattr(model, name, fully_shard(checkpoint_wrapper(getattr(model, name)), mesh=mesh))
    fully_shard(model, mesh=mesh)
    compressed(model, method)
    return train(model, rank)


def compiled(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    """Each block by itself, as large models are compiled."""
    model = model_of()
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.compile(backend="aot_eager")
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    compressed(model, method)
    return train(model, rank)


def compiled_whole(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    """The model is compiled, and then what ``torch.compile`` gave is sharded."""
    model = model_of()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    model = torch.compile(model, backend="aot_eager")  # type: ignore[assignment]
    fully_shard(model, mesh=mesh)
    assert exchanged(model)
    compressed(model, method)
    return train(model, rank)


WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (
        meta,
        assigned,
        kept_whole,
        accumulated,
        clipped,
        offloaded,
        reduced,
        several,
        divided,
        small,
        tied,
        columns,
        checkpointed,
        compiled,
        compiled_whole,
    )
}


def ways(rank: int) -> dict[str, Any]:
    """Each way by FSDP alone, and with gradwire around it that compresses nothing, and something."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    told: dict[str, Any] = {
        name: {str(method): way(rank, mesh, method) for method in (None, "none", "fp16")} for name, way in WAYS.items()
    }
    return told | {
        "frozen": frozen(rank, mesh),
        "branches": branches(rank, mesh),
        "refused": refused(mesh),
        "scaled": scaled(rank, mesh),
        "dropped": {name: dropped(rank, mesh, *steps) for name, steps in DROPPED.items()},
        "asked": asked(sharded(mesh), compress_fsdp, rank),
    }


def asked(model: nn.Module, compress: Callable[..., Any], rank: int) -> dict[str, str]:
    """The calls that are meant for between two steps, inside a backward pass."""
    state, (x, y) = compress(model, "topk", ratio=0.1, min_numel=0), batch(0, rank)
    x.requires_grad_()
    return asked_inside(state, x, lambda: nn.functional.cross_entropy(model(x), y).backward())


DROPPED = {
    "used": ("backward", "step", "none", "backward", "step", "zero", "backward"),
    "accumulated": ("backward", "step", "none", "backward", "backward", "step", "zero", "backward", "backward"),
    "frozen": ("backward", "step", "none", "freeze", "backward", "thaw", "backward", "step"),
    "none": ("backward", "step", "none", "backward", "none", "backward"),
    "zero": ("backward", "step", "zero", "backward", "zero", "backward"),
}


def dropped(rank: int, mesh: DeviceMesh, *steps: str) -> list[str]:
    """The warnings of gradients that are used, or dropped before that."""
    model, said = sharded(mesh), heard(logging.WARNING)
    compress_fsdp(model, "topk", ratio=0.1, min_numel=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = batch(0, rank)
    does: dict[str, Callable[[], object]] = {
        "backward": lambda: nn.functional.cross_entropy(model(x.clone().requires_grad_()), y).backward(),
        "step": optimizer.step,
        "none": optimizer.zero_grad,
        "zero": lambda: optimizer.zero_grad(set_to_none=False),
        "freeze": lambda: model.requires_grad_(False),
        "thaw": lambda: model.requires_grad_(True),
    }
    for step in steps:
        does[step]()
    return [each for each in said if "set to None or to zero" in each]


def frozen(rank: int, mesh: DeviceMesh) -> dict[str, Any]:
    """Frozen and unfrozen between steps, in the same model: residuals stay, then go on."""
    model = sharded(mesh)
    state = compress_fsdp(model, "topk", ratio=0.1, min_numel=0)
    train(model, rank)
    model[2].weight.requires_grad_(False)
    before, weight = snapshot(state), model[2].weight.full_tensor().clone()
    train(model, rank)
    after = snapshot(state)
    told = {
        "weight": torch.equal(model[2].weight.full_tensor(), weight),
        "kept": torch.equal(after["2.weight"], before["2.weight"]),
        "moved": not torch.equal(after["2.bias"], before["2.bias"]),
    }
    state.load_state_dict(state.state_dict())
    model[2].weight.requires_grad_(True)
    train(model, rank)
    return told | {
        "sent": not torch.equal(snapshot(state)["2.weight"], before["2.weight"]),
        "trained": not torch.equal(model[2].weight.full_tensor(), weight),
    }


def branches(rank: int, mesh: DeviceMesh) -> dict[str, Any]:
    """A branch that one rank uses alone: said if FSDP leaves it out, exchanged if FSDP is told to send zeros."""

    def step(model: nn.Module, left: bool) -> None:
        x, y = batch(0, rank)
        nn.functional.cross_entropy(model(x, left), y).backward()

    model = fully_shard(Branches(), mesh=mesh)
    compress_fsdp(model, "topk", min_numel=0)
    said = answers({"": lambda: step(model, True)})[""]
    torch.manual_seed(0)
    model = fully_shard(Branches(), mesh=mesh)
    compress_fsdp(model, "none", min_numel=0)
    model.set_reduce_scatter_unused_params(True)
    step(model, rank == 0)
    torch.manual_seed(0)
    plain = Branches()
    step(plain, rank == 0)
    wanted = plain.left.weight.grad if plain.left.weight.grad is not None else torch.zeros_like(plain.left.weight)
    dist.all_reduce(wanted.div_(dist.get_world_size()))
    return {"said": said, "same": torch.allclose(gradients(model)["left.weight"], wanted, atol=1e-7)}


def scaled(rank: int, mesh: DeviceMesh) -> dict[str, Any]:
    """A GradScaler, three micro-batches a step, an overflow on one rank in one of them."""
    model = sharded(mesh)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    state = compress_fsdp(model, "topk", ratio=0.1, min_numel=0, scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    skipped, scales, same = [], [], False
    for step in range(5):
        before, weights = snapshot(state), [param.clone() for param in whole(model).values()]
        for micro in range(3):
            model.set_requires_gradient_sync(micro == 2)
            x, y = batch(3 * step + micro, rank)
            bad = (step, micro, rank) == (3, 1, 1)
            scaler.scale(nn.functional.cross_entropy(model(x), y) * (float("inf") if bad else 1.0)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scales.append(scaler.get_scale())
        scaler.update()
        optimizer.zero_grad()
        skipped.append(all(torch.equal(*pair) for pair in zip(weights, whole(model).values(), strict=True)))
        if step == 3:
            same = all(torch.equal(before[name], tensor) for name, tensor in snapshot(state).items())
    return {"skipped": skipped, "scales": scales, "same": same}


def snapshot(state: FSDPState) -> dict[str, Tensor]:
    state.state_dict()
    return {name: tensor.clone() for name, tensor in state.exchange.residuals.worker.get("residual", {}).items()}


def refused(mesh: DeviceMesh) -> dict[str, str]:
    outer = fully_shard(model_of(), mesh=mesh)
    with torch.device("meta"):
        empty = model_of()
    replicas = init_device_mesh("cpu", (mesh.size(), 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(empty, mesh=replicas["shard"])
    taken = sharded(mesh)
    compress_fsdp(taken, "none", weights="bf16")
    return answers(
        {
            "inner": lambda: compress_fsdp(outer[0], "qsgd"),
            "symmetric": lambda: cast(Any, taken[0]).set_symm_mem_for_comm(),
            "meta": lambda: compress_fsdp(empty, "qsgd", replicate=replicas["replicate"]),
        }
    )


def hybrid(rank: int, folder: str) -> dict[str, Any]:
    """Replicas: what is reduced in micro-batches is averaged between them once; residuals are taken up again."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    told: dict[str, Any] = {"plain": between(rank, mesh, None), "none": between(rank, mesh, "none")}

    def start() -> tuple[nn.Module, FSDPState]:
        model = sharded(mesh["shard"])
        return model, compress_fsdp(model, "topk", ratio=0.1, min_numel=0, replicate=mesh["replicate"])

    model, state = start()
    plain_steps(model, range(3), rank)
    dcp.save({"model": model, "gradwire": state}, checkpoint_id=folder)
    unbroken = plain_steps(model, range(3, 6), rank)
    again, fresh = start()
    dcp.load({"model": again}, checkpoint_id=folder)
    fresh.load_state_dict(gradwire.read_checkpoint(folder))
    resumed = plain_steps(again, range(3, 6), rank)
    told["resumed"] = all(torch.equal(*pair) for pair in zip(unbroken, resumed, strict=True))
    return told


def plain_steps(model: nn.Module, steps: range, rank: int) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps:
        x, y = batch(step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [param.clone() for param in whole(model).values()]


def between(rank: int, mesh: DeviceMesh, method: str | None) -> list[Tensor]:
    """Each micro-batch is reduced inside the shards, the last one between them, too."""
    model = sharded(mesh if method is None else mesh["shard"])
    state = compress_fsdp(model, method, min_numel=0, replicate=mesh["replicate"]) if method is not None else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        model.set_requires_all_reduce(step % 3 == 2)
        x, y = batch(step, rank)
        nn.functional.cross_entropy(model(x), y).backward()
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    assert state is None or state.metrics()["steps"] == 2
    return [param.clone() for param in whole(model).values()]


def first_form(rank: int) -> dict[str, Any]:
    """FSDP1 under no_sync, and in bfloat16, by itself and with gradwire around it."""
    model = FullyShardedDataParallel(model_of(), device_id=torch.device("cpu"))
    return {"asked": asked(model, compress_fsdp1, rank)} | {
        f"{name}/{method}": first_of(rank, name, method)
        for name in ("no_sync", "mixed", "original")
        for method in (None, "none", "qsgd")
    }


def first_of(rank: int, name: str, method: str | None) -> tuple[Tensor, int]:
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model = FullyShardedDataParallel(
        model_of(),
        device_id=torch.device("cpu"),
        use_orig_params=name == "original",
        mixed_precision=half if name == "mixed" else None,
    )
    options = {"bits": 8, "memory": "residual"} if method == "qsgd" else {}
    state = compress_fsdp1(model, method, min_numel=0, **options) if method is not None else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        x, y = batch(step, rank)
        if name == "no_sync" and step % 3 < 2:
            with model.no_sync():
                nn.functional.cross_entropy(model(x).float(), y).backward()
            continue
        nn.functional.cross_entropy(model(x).float(), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    with FullyShardedDataParallel.summon_full_params(model):
        weights = torch.cat([param.detach().flatten() for param in model.parameters()]).clone()
    return weights, state.metrics()["steps"] if state is not None else 0
