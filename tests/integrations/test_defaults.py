"""Defaults where nobody names a method: auto, or bfloat16, which suits every optimizer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.testing.processes import run_ranks
from tests.house.source import ROOT
from tests.integrations.jobs import answers, batch, loss_of, model_of

DECIDING = {
    "accelerate.compress",
    "ddp.compress_ddp",
    "ddp.__init__",
    "fsdp.compress_fsdp",
    "lightning.__init__",
    "optimizer.compress_optimizer",
    "transformers.compress_trainer",
}
FIXED = {"fsdp1.compress_fsdp1", "jax.compress", "process_group.wrap_group", "tensorflow.__init__"}
"""Those that nobody watches: what is given by others when they want."""
STEPS = 40


def defaults() -> Iterator[tuple[str, object]]:
    """The functions in which a compressor may be left out, and its default there. From the source: frameworks may be
    missing."""
    package = ROOT / "src/gradwire"
    for file in sorted([*(package / "frontends").rglob("*.py"), package / "contrib/fsdp1.py"]):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                given = node.args.args[len(node.args.args) - len(node.args.defaults) :]
                for argument, default in zip(given, node.args.defaults, strict=True):
                    if argument.arg == "compressor":
                        yield f"{file.stem}.{node.name}", ast.literal_eval(default)


def test_every_front_door_decides_or_halves_the_bytes() -> None:
    assert dict(defaults()) == {**dict.fromkeys(DECIDING, "auto"), **dict.fromkeys(FIXED, "bf16")}


def _ddp(model: nn.Module) -> tuple[nn.Module, Any]:
    wrapped = DistributedDataParallel(model)
    return wrapped, gradwire.compress_ddp(wrapped)


def _optimizer(model: nn.Module) -> tuple[nn.Module, Any]:
    return model, None


def _fsdp(model: nn.Module) -> tuple[nn.Module, Any]:
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, gradwire.compress_fsdp(model)


def _plain(model: nn.Module) -> tuple[nn.Module, Any]:
    return DistributedDataParallel(model), None


WAYS = {"compress_ddp": _ddp, "compress_optimizer": _optimizer, "compress_fsdp": _fsdp, "plain": _plain}


def _trained(way: str) -> dict[str, Any]:
    inner = model_of()
    model, state = WAYS[way](inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if way == "compress_optimizer":
        state = gradwire.compress_optimizer(optimizer, model)
    for step in range(STEPS):
        x, y = batch(step, dist.get_rank())
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    if way == "compress_fsdp":
        values = [param.full_tensor() for param in inner.parameters()]
        inner = model_of()
        for param, value in zip(inner.parameters(), values, strict=True):
            param.data.copy_(value)
    return {
        "loss": loss_of(inner),
        "metrics": state.metrics() if state else {},
        "decisions": state.decisions() if state else {},
    }


def _compared(rank: int) -> dict[str, Any]:
    told = {way: _trained(way) for way in WAYS}
    model = DistributedDataParallel(model_of())
    return {**told, "unknown": answers({"": lambda: gradwire.compress_ddp(model, threshold=1e-3)})[""]}


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    return run_ranks(2, _compared)[0]


@pytest.mark.parametrize("way", ["compress_ddp", "compress_optimizer", "compress_fsdp"])
def test_the_default_trains_under_adamw_as_no_compression_does(compared: dict[str, Any], way: str) -> None:
    start, plain, ours = loss_of(model_of()), compared["plain"]["loss"], compared[way]
    assert abs(ours["loss"] - plain) < 0.02 * (start - plain)
    assert ours["decisions"]["budget"] == "safe"
    assert ours["metrics"]["residual_norm"] == 0.0


def test_a_parameter_of_another_method_is_refused_with_the_name_of_the_default(compared: dict[str, Any]) -> None:
    assert compared["unknown"].startswith("ConfigError: ")
    assert "auto" in compared["unknown"]
    assert "threshold" in compared["unknown"]
