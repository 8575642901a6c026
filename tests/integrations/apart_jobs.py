"""Work of ranks that come apart: one of them makes a call that the others do not, or leaves something out."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from gradwire.frontends.ddp import compress_ddp
from gradwire.frontends.fsdp import compress_fsdp
from gradwire.frontends.optimizer import compress_optimizer
from gradwire.optim import DiLoCo, OneBitAdam
from gradwire.transport import failures
from tests.heard import heard
from tests.integrations.jobs import batch, model_of, note, wait_for

TIMEOUT = 200.0
"""Seconds that these exchanges wait; whoever hears of a difference needs none of them."""

SHORT = 10.0
"""Seconds that exchanges wait for a rank that does not come: enough for the steps before that on a busy machine."""

ODD, AT = 1, 3
"""The rank that does something else, and when."""


class Training:
    """One rank's model, optimizer and state, for each way of exchanging gradients."""

    def __init__(self, way: str, rank: int, compressor: str, options: dict[str, Any]) -> None:
        model = model_of()
        options = {"timeout": TIMEOUT, "min_numel": 0, **options}
        if way in ("ddp", "uncompressed", "traced"):
            if way == "traced":
                torch._dynamo.config.optimize_ddp = "python_reducer"
            model = DistributedDataParallel(model, bucket_cap_mb=0.05)
            self.state: Any = compress_ddp(model, compressor, **options)
        elif way in ("fsdp", "replicated"):
            shards = 1 if way == "replicated" else dist.get_world_size()
            mesh = init_device_mesh(
                "cpu", (dist.get_world_size() // shards, shards), mesh_dim_names=("copies", "shard")
            )
            model = fully_shard(model, mesh=mesh["shard"])
            replicate = mesh["copies"] if way == "replicated" else None
            self.state = compress_fsdp(model, compressor, replicate=replicate, **options)
        self.model = model
        self.optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        if way == "optimizer":
            self.state = compress_optimizer(self.optimizer, model, compressor, bucket_mb=0.05, **options)
        elif way == "adam":
            self.optimizer = self.state = OneBitAdam(
                model.parameters(), freeze_step=1, compressor=compressor, **options
            )
        elif way == "diloco":
            self.optimizer = self.state = DiLoCo(self.optimizer, compressor, every=1, **options)
        self.rank = rank

    def backward(self, step: int) -> None:
        x, y = batch(step, self.rank)
        nn.functional.cross_entropy(self.model(x), y).backward()


def outcome(error: Exception) -> tuple[str, str]:
    """The type of what was raised and its first line, without what torch puts before the error of a DDP hook."""
    text = str(error).partition("\n")[0].removeprefix("Got the following error when running the callback: ")
    text = text.removeprefix("GroupError: ").removeprefix("an earlier exchange failed: ")
    return type(error).__name__, text


def apart(rank: int, way: str, kind: str, timeout: float = TIMEOUT) -> tuple[str, str]:
    """Train; in step AT the odd rank does something alone. What was raised."""
    options: dict[str, Any] = {"timeout": timeout}
    compressor = {"fsdp": "qsgd", "replicated": "qsgd", "uncompressed": "none"}.get(way, "topk")
    if kind == "schedule":
        parameter, usual, other = ("bits", 4, 2) if compressor == "qsgd" else ("ratio", 0.01, 0.05)
        options |= {"schedule": {parameter: lambda step: other if (rank, step) == (ODD, AT) else usual}}
    training = Training(way, rank, compressor, options)
    for step in range(AT + 2):
        try:
            if (rank, step) == (ODD, AT):
                if kind == "load":
                    training.state.load_state_dict(training.state.state_dict())
                elif kind == "change":
                    training.state.change("qsgd", bits=8, drop=True)
            training.backward(step)
            training.optimizer.step()
            training.optimizer.zero_grad()
        except Exception as error:
            return outcome(error)
    return "nothing", "was raised"


def swapped(rank: int, compressor: str, several: bool) -> tuple[str, str]:
    """DDP of the odd rank takes two layers of one size for each other, which lie in one bucket or in several."""
    torch.manual_seed(0)
    layers = [("first", nn.Linear(512, 512, bias=False)), ("second", nn.Linear(512, 512, bias=False))]
    module = nn.Sequential(OrderedDict(layers))
    if rank == ODD:
        module._modules = dict(reversed(layers))
    # Buckets are those of the first step, of one size, where DDP looks for unused parameters.
    model = DistributedDataParallel(module, bucket_cap_mb=1, find_unused_parameters=several)
    module._modules = dict(layers)
    compress_ddp(model, compressor)
    try:
        for _ in range(2):
            model(torch.ones(2, 512)).sum().backward()
    except Exception as error:
        return outcome(error)
    return "nothing", "was raised"


def once_more(rank: int) -> list[str]:
    """After the ranks came apart nobody can go on, not even the rank that has caught its error."""
    training = Training("optimizer", rank, "topk", {})
    told = []
    for step in range(3):
        try:
            if (rank, step) == (ODD, 1):
                training.state.change("qsgd", bits=8, drop=True)
            training.backward(step)
            training.optimizer.step()
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
    return told


def skipping(rank: int, set_to_none: bool) -> tuple[str, str]:
    """The odd rank leaves out one step of the optimizer."""
    training = Training("optimizer", rank, "topk", {})
    for step in range(AT + 3):
        try:
            training.optimizer.zero_grad(set_to_none=set_to_none)
            training.backward(step)
            if (rank, step) != (ODD, AT):
                training.optimizer.step()
        except Exception as error:
            return outcome(error)
    return "nothing", "was raised"


def steady(rank: int, kind: str) -> int:
    """Four exchanges in which a gradient is written to, replaced or computed several times; how many were counted."""
    training = Training("optimizer", rank, "topk", {})
    for step in range(4):
        training.optimizer.zero_grad(set_to_none=step % 2 == 0)
        if kind == "conditional":
            # All ranks drop this batch, in which each used other parameters.
            list(training.model.parameters())[rank].sum().backward()
            training.optimizer.zero_grad(set_to_none=step < 2)
            next(training.model.parameters()).sum().backward()
        for part in range(
            {"accumulation": 3, "uneven": 2 + rank, "second order": 1 + rank, "conditional": 0}.get(kind, 1)
        ):
            if kind == "second order":
                x, y = batch(part, rank)
                nn.functional.cross_entropy(training.model(x), y).backward(create_graph=True)
            else:
                training.backward(part)
        if kind == "clipped":
            nn.utils.clip_grad_norm_(training.model.parameters(), 0.1 * (1 + rank))
        if kind == "by hand":
            training.state.exchange_gradients()
            if step == 2:
                continue  # All ranks exchange this gradient, and skip its step.
        training.optimizer.step()
    return int(training.state.metrics()["steps"])


def scaled(rank: int, given: str | None) -> tuple[str, str, int]:
    """Three steps under a scaler, the first of which overflows on the odd rank alone, and how many were exchanged."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=given != "disabled")
    known = {"given": scaler, "another": torch.amp.GradScaler("cpu")}.get(str(given))
    training = Training("optimizer", rank, "topk", {"scaler": known})
    try:
        for step in range(3):
            training.optimizer.zero_grad()
            x, y = batch(step, rank)
            scaler.scale(nn.functional.cross_entropy(training.model(x), y)).backward()
            if (rank, step) == (ODD, 0) and given != "disabled":
                next(training.model.parameters()).grad[0] = torch.inf
            if given == "given":
                training.state.exchange_gradients()
            scaler.step(training.optimizer)
            scaler.update()
    except Exception as error:
        return *outcome(error), int(training.state.metrics()["steps"])
    return "nothing", "was raised", int(training.state.metrics()["steps"])


def unfrozen(rank: int) -> tuple[str, str]:
    """The odd rank freezes a parameter after set-up."""
    training = Training("optimizer", rank, "topk", {})
    try:
        if rank == ODD:
            next(training.model.parameters()).requires_grad_(False)
        training.backward(0)
        training.optimizer.step()
    except Exception as error:
        return outcome(error)
    return "nothing", "was raised"


def late(rank: int, folder: str) -> tuple[str, str]:
    """The odd rank is busy until the others have given up."""
    training = Training("optimizer", rank, "topk", {"timeout": SHORT})
    try:
        for step in range(3):
            if (rank, step) == (ODD, 1):
                wait_for(folder, (0, 2))
            training.backward(step)
            training.optimizer.step()
    except Exception as error:
        note(folder, rank)
        return outcome(error)
    return "nothing", "was raised"


def patient(rank: int, timeout: float | None) -> float | None:
    """The timeout of the group in which gradients travel."""
    options = {} if timeout is None else {"timeout": timeout}
    model = nn.Linear(4, 4)
    state = compress_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, "topk", **options)
    return failures.timeout_of(state.exchange.channel.group)


def alone(rank: int) -> tuple[str, list[str]]:
    """Only rank 0 sets gradwire up; what it raises, and what it has logged until then."""
    logged = heard(logging.WARNING)
    failures.PATIENCE = 0.5
    model = DistributedDataParallel(nn.Linear(4, 4))
    if rank:
        time.sleep(6.0)
        return "", logged
    try:
        compress_ddp(model, "topk", timeout=3.0)
    except Exception as error:
        return outcome(error)[1], logged
    return "nothing was raised", logged
