"""Work of the ranks in the checkpoint tests; each function is one launch."""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import registry
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import carries, default_strategy
from gradwire.engine.policy import Policy
from gradwire.errors import ConfigError
from gradwire.frontends.adapters import _gather
from gradwire.frontends.ddp import GradwireState, compress_ddp
from gradwire.frontends.optimizer import compress_optimizer
from gradwire.transport.channel import Channel
from tests.integrations.jobs import answers, batch, digest, model_of

PARAMS = [("w", (48, 40)), ("b", (40,)), ("v", (40, 24))]
SETTINGS: dict[str, dict[str, Any]] = {
    "gradiveq": {"size": 32, "components": 8, "period": 4, "sampled": 2},
    "twobit": {"threshold": "auto"},
    "topk": {"ratio": 0.05},
}


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


OWNED = ("topk", "qsgd", "twobit", "onebit", "dgc", "ef21", "variance")
"""Methods by two_phase, too: those that differ in what is kept by workers and owners."""


def cases() -> list[tuple[str, str]]:
    """Every method by its own strategy, and some by two_phase."""
    found = []
    for name in registry.names("compressors"):
        code = registry.build("compressors", name, SETTINGS.get(name, {}))
        own = "oktopk" if name == "oktopk" else default_strategy(code, 2)
        found.append((name, own))
        if name in OWNED and carries(registry.build("strategies", "two_phase"), code) and own != "two_phase":
            found.append((name, "two_phase"))
    return found


def exchange_of(name: str, strategy: str) -> Exchange:
    code = registry.build("compressors", name, SETTINGS.get(name, {}))
    return Exchange(code, strategy=strategy, group=dist.group.WORLD, policy=Policy(min_numel=64))


def step_of(exchange: Exchange, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + exchange.channel.rank)
    flat = torch.randn(sum(torch.Size(shape).numel() for _, shape in PARAMS), generator=generator)
    exchange.begin_step()
    exchange.run(flat, PARAMS)
    return flat


def resume_each(rank: int, each: list[tuple[str, str]], steps: int) -> dict[tuple[str, str], list[bool]]:
    """Compare the steps after a load, for each method, bit for bit with those of the run that was not interrupted."""
    same = {}
    for name, strategy in each:
        exchange = exchange_of(name, strategy)
        before = 5 if name == "gradiveq" else steps  # It learns its basis first.
        for step in range(before):
            step_of(exchange, step)
        saved = through_a_file(exchange.state_dict())
        again = exchange_of(name, strategy)
        again.load_state_dict(saved)
        pairs = [(step_of(exchange, step), step_of(again, step)) for step in range(before, before + steps)]
        left = [through_a_file(run.state_dict()) for run in (exchange, again)]
        same[name, strategy] = [*(torch.equal(*pair) for pair in pairs), equal(*left)]
    return same


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return set(one) == set(other) and all(equal(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


def train(model: nn.Module, steps: range, rank: int) -> str:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps:
        x, y = batch(step, rank)
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return digest(model)


def wrapped(compressor: str, **options: Any) -> tuple[DistributedDataParallel, GradwireState]:
    model = DistributedDataParallel(model_of(), bucket_cap_mb=0.05)
    return model, compress_ddp(model, compressor, min_numel=128, **options)


def ddp_and_dcp(rank: int, folder: str) -> dict[str, Any]:
    """DDP resumed from files and from distributed checkpoints, and what is refused."""
    told: dict[str, Any] = {"resumed": {}, "refused": {}}
    for compressor, options in {
        "twobit": {"threshold": 1e-3},
        "topk": {"ratio": 0.05},
        "powersgd": {"rank": 2},
    }.items():
        model, state = wrapped(compressor, **options)
        train(model, range(3), rank)
        if compressor == "topk":
            dcp.save({"model": model, "gradwire": state}, checkpoint_id=f"{folder}/sync")
            dcp.async_save({"model": model, "gradwire": state}, checkpoint_id=f"{folder}/async").result()
        weights, saved = through_a_file(model.state_dict()), through_a_file(state.state_dict())
        unbroken = train(model, range(3, 6), rank)
        ways = {"file": lambda saved=saved: saved}
        if compressor == "topk":
            ways["dcp"] = lambda: gradwire.read_checkpoint(f"{folder}/sync")
            ways["dcp async"] = lambda: gradwire.read_checkpoint(f"{folder}/async")
        for way, read in ways.items():
            again, fresh = wrapped(compressor, **options)
            fresh.load_state_dict(read())
            again.load_state_dict(weights)
            told["resumed"][compressor, way] = train(again, range(3, 6), rank) == unbroken
    told["refused"] = refused(f"{folder}/sync", saved)
    return told


def gather(rank: int, piece: int) -> dict[str, Any]:
    """The states of all ranks as rank 0 collects them in pieces, and the bytes from each rank in each message."""
    exchange, received = Channel.exchange, []

    def noting(channel: Channel, sends: Any, receives: Any) -> None:
        received.append([each.nbytes for each in receives])
        exchange(channel, sends, receives)

    model, state = wrapped("topk", ratio=0.05)
    train(model, range(2), rank)
    Channel.exchange, _gather.PIECE = noting, piece
    return {"own": through_a_file(state.state_dict()), "all": _gather.gathered(state), "received": received}


def gathering_devices(rank: int) -> list[str]:
    """The devices that states are collected on: by a group that serves the CPU, and by two that say they do not."""
    state, collected, devices = wrapped("topk", ratio=0.05)[1], _gather.collected, []

    def noting(channel: Channel, state: Any, device: torch.device) -> list[dict[str, Any]]:
        devices.append(str(device))
        return collected(channel, state, device)

    # The same device by a name of its own.
    state.exchange.device, _gather.collected = torch.device("cpu", 0), noting
    for served in (None, {"cuda": "nccl"}, {"npu": "hccl"}):
        if served is not None:
            _gather.backends_of = lambda _, served=served: served
        _gather.gathered(state)
    return devices


def refused(path: str, powersgd: dict[str, Any]) -> dict[str, str]:
    model, fresh = wrapped("topk", ratio=0.05)
    other, renamed = wrapped("qsgd")[1], gradwire.read_checkpoint(path)
    renamed["ranks"]["0"]["worker"]["residual"]["module.weight"] = torch.zeros(3)
    renamed["ranks"]["0"]["tensors"] += 1
    calls = {
        "in place": lambda: dcp.load({"model": model, "gradwire": fresh}, checkpoint_id=path),
        "no memory": lambda: other.load_state_dict(powersgd),
        "renamed": lambda: fresh.load_state_dict(renamed),
        "world": lambda: fresh.load_state_dict({**powersgd, "world": 3}),
        "word": lambda: fresh.load_state_dict(powersgd, on_resize="split"),
        "no state": lambda: fresh.load_state_dict({"step": 3}),
        "rank missing": lambda: fresh.load_state_dict({**powersgd, "ranks": {}}),
        "file of rank 1": lambda: fresh.load_state_dict(
            {**powersgd, "ranks": {"1": next(iter(powersgd["ranks"].values()))}}
        ),
        "other key": lambda: gradwire.read_checkpoint(path, "hook"),
        "steps": lambda: fresh.load_state_dict({**powersgd, "step": 3 + dist.get_rank()}),
    }
    return answers(calls)


def save_some(rank: int, compressors: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """States after two steps, by the plain loop and two_phase where that is possible."""
    states = {}
    for name, options in compressors.items():
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = compress_optimizer(optimizer, model, name, bucket_mb=0.05, min_numel=128, **options)
        for step in range(2):
            x, y = batch(step, rank)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        states[name] = state.state_dict()
        state.close()
    return states


def load_resized(
    rank: int, compressors: dict[str, dict[str, Any]], saved: dict[str, list[dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """The residuals of this rank after loading with reshard, after one more step, and after loading with reset."""
    told: dict[str, dict[str, Any]] = {}
    for name, options in compressors.items():
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = compress_optimizer(optimizer, model, name, bucket_mb=0.05, min_numel=128, **options)
        merged = gradwire.merge_states(saved[name])
        try:
            state.load_state_dict(merged)
        except ConfigError as error:
            told[name] = {"error": str(error)}
        state.load_state_dict(merged, on_resize="reshard")
        told[name]["state"] = state.state_dict()
        x, y = batch(2, rank)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        told[name]["metrics"] = state.metrics()
        state.load_state_dict(merged, on_resize="reset")
        told[name]["reset"] = state.metrics()
        state.close()
    return told
