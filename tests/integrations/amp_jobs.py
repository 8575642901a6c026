"""Work of the ranks in the tests of precision; each function is one launch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import ConfigError
from gradwire.frontends.ddp import compress_ddp
from gradwire.frontends.optimizer import compress_optimizer
from tests.integrations.jobs import batch, digest, model_of

BAD = 3
"""The step in which rank 1 overflows."""


def kept(state: Any) -> dict[str, torch.Tensor]:
    (mine,) = state.state_dict()["ranks"].values()
    worker = {
        f"{buffer}/{name}": tensor.clone() for buffer, of in mine["worker"].items() for name, tensor in of.items()
    }
    return worker | {
        f"states/{name}/{key}": tensor.clone()
        for name, state in mine["states"].items()
        for key, tensor in state.items()
    }


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def scaled(rank: int, methods: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A GradScaler over several buckets; the value that is not finite is in the last of them alone."""
    return {name: scaled_one(rank, name, options) for name, options in methods.items()}


def scaled_one(rank: int, name: str, options: dict[str, Any]) -> dict[str, Any]:
    model = DistributedDataParallel(model_of(), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    state = compress_ddp(model, name, min_numel=0, scaler=scaler, **options)
    told: dict[str, Any] = {"skipped": [], "scales": [], "untouched": None}
    for step in range(7):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        before, weights, scale = kept(state), digest(model), scaler.get_scale()
        handle = None
        if (step, rank) == (BAD, 1):
            handle = next(iter(model.parameters())).register_hook(lambda grad: grad * float("inf"))
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        if handle:
            handle.remove()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        told["skipped"].append(digest(model) == weights)
        told["scales"].append(scale)
        if step == BAD:
            told["untouched"] = same(before, kept(state))
    return told | {"digest": digest(model), "metrics": state.metrics()}


def torchs_powersgd(rank: int) -> list[bool]:
    """The steps in which torch's own hook gives finite gradients, after the same overflow."""
    model = DistributedDataParallel(model_of())
    state = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook)
    return [finite_step(model, step, rank) for step in range(7)]


def ours(rank: int) -> list[bool]:
    model = DistributedDataParallel(model_of())
    compress_ddp(model, "powersgd", rank=1, min_numel=0)
    return [finite_step(model, step, rank) for step in range(7)]


def finite_step(model: nn.Module, step: int, rank: int) -> bool:
    x, y = batch(step, rank)
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    (loss * (float("inf") if (step, rank) == (BAD, 1) else 1.0)).backward()
    return all(bool(param.grad.isfinite().all()) for param in model.parameters())


def units(rank: int) -> dict[str, Any]:
    """The residuals as they follow loss scales and learning rates, in a plain loop."""
    told = {}
    for name, options in {"topk": {"ratio": 0.05}, "dgc": {"ratio": 0.05}, "variance": {}, "ef21": {}}.items():
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        state = compress_optimizer(optimizer, model, name, min_numel=0, scaler=scaler, lr_correction=True, **options)
        one_step(state, model, optimizer, scaler, 0, rank)
        before = state.exchange.state_dict()["ranks"][str(rank)]["worker"]
        before = {buffer: {key: tensor.clone() for key, tensor in of.items()} for buffer, of in before.items()}
        state.units.follow(state.exchange, 2.0, {})
        after = state.exchange.state_dict()["ranks"][str(rank)]["worker"]
        told[name, "scale"] = {buffer: ratio(after[buffer], before[buffer]) for buffer in before}
        weight, rate = "0.weight", 0.1 / 4
        state.units.follow(state.exchange, None, {weight: rate})
        again = state.exchange.state_dict()["ranks"][str(rank)]["worker"]
        if "residual" in before:
            told[name, "rate"] = ratio({weight: again["residual"][weight]}, {weight: before["residual"][weight]})
            told[name, "others"] = ratio(
                {"2.weight": again["residual"]["2.weight"]}, {"2.weight": before["residual"]["2.weight"]}
            )
        state.close()
    return told


def one_step(state: Any, model: nn.Module, optimizer: Any, scaler: Any, step: int, rank: int) -> None:
    x, y = batch(step, rank)
    optimizer.zero_grad()
    scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 8.0)
    state.exchange_gradients()
    scaler.step(optimizer)
    scaler.update()


def ratio(after: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> list[float]:
    """The factors between two sets of tensors, where the first is not 0."""
    factors = {
        float(value) for name, tensor in before.items() for value in (after[name] / tensor)[tensor != 0].unique()
    }
    return sorted(factors)


def schedule(rank: int) -> dict[str, Any]:
    """Under DDP: the residual follows a rate that falls to a tenth, and a learning rate of 0 is passed over."""
    model = DistributedDataParallel(model_of())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state = compress_ddp(model, "topk", ratio=0.05, min_numel=0, lr_correction=optimizer)
    factors = []
    for rate in (1.0, 0.0, 0.25):
        optimizer.param_groups[0]["lr"] = rate
        before = {name: tensor.clone() for name, tensor in state.exchange.residuals.worker.get("residual", {}).items()}
        model.zero_grad()
        (0.0 * model(batch(0, rank)[0])).sum().backward() if before else finite_step(model, 0, rank)
        after = state.exchange.residuals.worker["residual"]
        factors.append(sorted(set(ratio(dict(after), before)) - {0.0}))
    return {"factors": factors, "saved": state.state_dict()["units"]["rates"]["0.weight"]}


def autocast(rank: int, dtype: torch.dtype) -> dict[str, Any]:
    model = DistributedDataParallel(model_of(), bucket_cap_mb=0.02)
    state = compress_ddp(model, "topk", ratio=0.1, min_numel=128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(10):
        x, y = batch(step % 2, rank)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return {"digest": digest(model), "losses": losses, "nonfinite": state.metrics()["nonfinite_steps"]}


def refusals(rank: int) -> list[str]:
    """A step without an exchange by hand; a state of a scaled run without a scaler; what is no scaler."""
    answers = []
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    state = compress_optimizer(optimizer, model, "topk", scaler=scaler)
    other = model_of()
    unscaled = compress_optimizer(torch.optim.SGD(other.parameters(), lr=0.1), other, "topk")
    x, y = batch(0, rank)
    scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
    for call in (
        lambda: scaler.step(optimizer),
        lambda: unscaled.load_state_dict(saved(state, scaler)),
        lambda: compress_optimizer(optimizer, model, "topk", scaler=1024.0),
        lambda: compress_ddp(DistributedDataParallel(model_of()), "topk", lr_correction=0.1),
    ):
        try:
            call()
        except ConfigError as error:
            answers.append(str(error))
    return answers


def saved(state: Any, scaler: Any) -> dict[str, Any]:
    state.exchange_gradients()
    return state.state_dict()


def everything(rank: int, methods: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All of this file in one launch."""
    return {
        "scaled": scaled(rank, methods),
        "torch": torchs_powersgd(rank),
        "ours": ours(rank),
        "units": units(rank),
        "schedule": schedule(rank),
        "refusals": refusals(rank),
        "world": dist.get_world_size(),
        "autocast": {str(dtype): autocast(rank, dtype) for dtype in (torch.bfloat16, torch.float16)},
    }
