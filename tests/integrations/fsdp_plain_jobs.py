"""Work of the ranks in the tests of uncompressed steps under FSDP; each function is one launch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from gradwire.compressors.sparse.topk import TopK
from gradwire.engine.strategies.allgather import AllGather
from gradwire.frontends.fsdp import FSDPState, compress_fsdp
from tests.integrations.fsdp_jobs import gradients, plain, sharded
from tests.integrations.jobs import batch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Types in which FSDP reduces."""

OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("none", {}),
    "auto": ("auto", {}),
    "dense warm-up": ("qsgd", {"start_after": 6}),
    "excluded": ("qsgd", {"exclude": ["*"]}),
}


def alone(rank: int) -> dict[str, dict[str, Any]]:
    """Six uncompressed steps of FSDP alone, and with a state, and what each state has counted."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    told: dict[str, dict[str, Any]] = {}
    for dtype in DTYPES:
        told[dtype] = {"FSDP alone": steps_of(sharded_in(mesh, dtype), rank)}
        for name, (method, options) in OURS.items():
            model = sharded_in(mesh, dtype)
            state = compress_fsdp(model, method, **options)
            told[dtype][name] = steps_of(model, rank)
            told[dtype][f"{name}, counted"] = state.metrics()
    return told


def sharded_in(mesh: DeviceMesh, dtype: str) -> nn.Module:
    return sharded(mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=DTYPES[dtype]))


def steps_of(model: nn.Module, rank: int, steps: int = 6) -> list[Tensor]:
    """The gradients of each step, while the model is trained."""
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for step in range(steps):
        optimizer.zero_grad()
        one_step(model, step, rank)
        found += [grad.clone() for grad in gradients(model).values()]
        optimizer.step()
    return found


def one_step(model: nn.Module, step: int, rank: int) -> None:
    x, y = batch(step, rank)
    nn.functional.cross_entropy(model(x), y).backward()


def differing(rank: int) -> str:
    """One rank compresses nothing, and another does: what they hear in the first step."""
    model = sharded(init_device_mesh("cpu", (dist.get_world_size(),)))
    state = compress_fsdp(model, "none", timeout=20.0)
    if rank == 0:
        state.exchange.change(state.exchange.methods.changed(TopK(ratio=0.1)))
    try:
        one_step(model, 0, rank)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def left(rank: int) -> dict[str, float]:
    """A method that keeps residuals is left for none: the largest difference between what was put in and what came."""
    world = dist.get_world_size()
    model = sharded(init_device_mesh("cpu", (world,)))
    state = compress_fsdp(model, "auto", min_numel=0)
    names = [name for name, _ in model.named_parameters()]
    state.exchange.assign({name: (TopK(ratio=0.1), AllGather()) for name in names})
    put, got = list[dict[str, Tensor]](), list[dict[str, Tensor]]()
    norms = []
    for step in range(6):
        if step == 3:
            state.exchange.assign({})
        norms.append(waiting(state))
        put.append(mean_of(model, step, rank))
        model.zero_grad()
        one_step(model, step, rank)
        got.append(gradients(model))
    state.exchange.end_step()
    lost = max(
        float((sum(each[name] for each in put) - sum(each[name] for each in got)).abs().max())  # type: ignore[union-attr]
        for name in names
    )
    return {"lost": lost, "waited": norms[3], "waits": waiting(state)}


def waiting(state: FSDPState) -> float:
    return float(state.metrics()["residual_norm"])


def mean_of(model: nn.Module, step: int, rank: int) -> dict[str, Tensor]:
    """The mean over the ranks of the gradients of a step, without FSDP."""
    local = plain(model)
    one_step(local, step, rank)
    found = {}
    for name, param in local.named_parameters():
        assert param.grad is not None
        dist.all_reduce(param.grad)
        found[name] = param.grad / dist.get_world_size()
    return found
