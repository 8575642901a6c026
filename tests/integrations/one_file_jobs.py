"""Rank 0 saves, and all ranks load: as most scripts do it."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import GradwireError
from gradwire.frontends.optimizer import compress_optimizer
from tests.heard import heard
from tests.integrations.jobs import batch, digest, model_of

METHODS: dict[str, dict[str, Any]] = {
    "qsgd": {},
    "topk": {"ratio": 0.05},
    "powersgd": {"rank": 2},
    "dgc": {"ratio": 0.05},
    "ef21": {},
    "oktopk": {"ratio": 0.05},
}


def trained(name: str, steps: range, rank: int, state: Any = None) -> tuple[Any, nn.Module]:
    """A model after some steps by the plain loop, by two_phase where that is possible, and the state of the exchange.

    Args:
        state: state that is loaded first.
    """
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = compress_optimizer(optimizer, model, name, bucket_mb=0.05, min_numel=128, **METHODS[name])
    if state is not None:
        made.load_state_dict(state)
    for step in steps:
        x, y = batch(step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return made, model


def save(rank: int) -> dict[str, dict[str, Any]]:
    """The state of each method after two steps, and those of DiLoCo after a step of five and after a whole round."""
    saved = {name: trained(name, range(2), rank)[0].state_dict() for name in METHODS}
    for name, steps in (("within", 1), ("between", 5)):
        optimizer, _ = local(rank, steps)
        saved[name] = optimizer.state_dict()
    return saved


def local(rank: int, steps: int) -> tuple[Any, nn.Module]:
    model = model_of()
    inner = torch.optim.SGD(model.named_parameters(), lr=0.1)
    optimizer = gradwire.diloco(inner, compressor="qsgd", every=5)
    for step in range(steps):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return optimizer, model


def residual_of(state: Any) -> float:
    own: dict[str, Tensor] = state.state_dict()["ranks"][str(state.exchange.channel.rank)]["worker"].get("residual", {})
    return float(sum(tensor.abs().sum() for tensor in own.values()))


def load(rank: int, saved: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The results of loading rank 0's files: the residual, whether ranks are alike after a step, and what was said."""
    said, told = heard(logging.WARNING), dict[str, Any]()
    for name in METHODS:
        del said[:]
        try:
            state, _ = trained(name, range(0), rank, saved[name])
        except GradwireError as error:
            told[name] = {"error": str(error)}
            continue
        kept = residual_of(state)
        state.close()
        state, model = trained(name, range(2, 4), rank, saved[name])
        told[name] = {"residual": kept, "digest": digest(model), "said": list(said), "steps": state.metrics()["steps"]}
        state.close()
    for name in ("within", "between"):
        optimizer, _ = local(rank, 0)
        try:
            optimizer.load_state_dict(saved[name])
            told[name] = {"rounds": optimizer.metrics()["rounds"], "steps": optimizer.metrics()["steps"]}
        except GradwireError as error:
            told[name] = {"error": str(error)}
    return told


def sharded(rank: int, name: str, state: Any = None, trains: bool = True) -> dict[str, Any]:
    """Train a model that is sharded over two ranks, in two replicas; the state, or the error of the given one.

    Args:
        trains: make a step; false where some ranks refuse the state, for which the others would wait.
    """
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = model_of()
    fully_shard(model, mesh=mesh["shard"])
    made = gradwire.compress_fsdp(model, name, replicate=mesh["replicate"], min_numel=128, timeout=30.0)
    if state is not None:
        try:
            made.load_state_dict(state)
        except GradwireError as error:
            return {"error": str(error)}
    if not trains:
        return {"error": ""}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = batch(0, rank)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    return {"state": made.state_dict(), "steps": made.metrics()["steps"]}


def load_whole(rank: int, saved: dict[str, Any]) -> list[str]:
    """The warnings of loading the complete state of one rank, resharded and then reset."""
    said = heard(logging.WARNING)
    for on_resize in ("reshard", "reset"):
        state, _ = trained("topk", range(0), rank)
        state.load_state_dict(saved, on_resize=on_resize)
        state.close()
    return [text for text in said if "rank 0 alone" in text]


def load_elsewhere(rank: int, saved: dict[str, Any], within: dict[str, Any]) -> tuple[int, str, str, str]:
    """Load states of another number of ranks, without saying how.

    Args:
        saved: state of a method that keeps nothing.
        within: state within a round.

    Returns:
        The step and the weights after another two, the lines of the state, and the error of the state within a round.
    """
    state, model = trained("qsgd", range(2, 4), rank, saved)
    told = ""
    try:
        local(rank, 0)[0].load_state_dict(within)
    except GradwireError as error:
        told = str(error)
    return state.metrics()["steps"], digest(model), str(state), told


def waiting(rank: int, front: str, saved: Any = None) -> dict[str, Any]:
    """A model that keeps something back, or one that "auto" goes on with from the file of rank 0 alone."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
    said = heard(logging.WARNING)
    name, options = ("auto", {}) if saved is not None else ("topk", {"ratio": 0.05, "min_numel": 8})
    if front == "fsdp":
        model = fully_shard(model)
        state = gradwire.compress_fsdp(model, name, **options)
    else:
        model = DistributedDataParallel(model, find_unused_parameters=True)
        state = gradwire.compress_ddp(model, name, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if saved is not None:
        state.load_state_dict(saved)
    left = sorted(state.exchange.leftovers.waiting)
    for step in range(6):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return {
        "state": state.state_dict(),
        "left": left,
        "now": sorted(state.exchange.leftovers.waiting),
        "said": [text for text in said if "rank 0 alone" in text],
    }
