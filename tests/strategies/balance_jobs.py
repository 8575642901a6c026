"""Exchanges of every memory by every strategy, and what is kept after each of their steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.bf16 import BF16
from gradwire.compressors.casts.fp8 import FP8
from gradwire.compressors.levels.natural import Natural
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.contrib.compressors.sparse.oktopk import OkTopk
from gradwire.contrib.compressors.sparse.randomk import RandomK
from gradwire.contrib.memory.momentum import Momentum
from gradwire.contrib.memory.variance import VarianceMemory
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import Named
from gradwire.engine.policy import Policy
from gradwire.memory.base import Memory
from gradwire.memory.dgc import DGCMemory
from gradwire.memory.ef21 import EF21Memory
from gradwire.memory.none import NoMemory
from gradwire.memory.residual import Residual
from tests.strategies.jobs import gradient

SHAPES: list[Named] = [("a", (40, 33)), ("b", (40, 25))]
N, STEPS, AGAIN = 2320, 3, 1
"""Elements, steps, and the step before which all plans are made anew, so that owners hand back what they keep."""

Gradients = Callable[[int, int], Tensor]
"""The gradient of a step and a rank."""


@dataclass(frozen=True)
class Kept:
    """The residuals of all ranks, as float64 of N elements: the mean over the ranks of each buffer, and the owners'
    shards."""

    mean: dict[str, Tensor]
    shards: Tensor


def constant(step: int, rank: int) -> Tensor:
    return gradient(0, rank, N)


def fresh(step: int, rank: int) -> Tensor:
    return gradient(step, rank, N)


GRADIENTS: dict[str, Gradients] = {"constant": constant, "fresh": fresh}


def carried(memory: Memory, before: Kept, grad: Tensor) -> Tensor:
    """The mean over the ranks of all that is to come out of a step or to be kept: what each memory must keep constant.

    Args:
        grad: the mean gradient.
    """
    kept = before.mean
    if isinstance(memory, Residual):
        return memory.beta * kept["residual"] + memory.gamma * grad + before.shards
    if isinstance(memory, DGCMemory):
        moved = memory.momentum * (kept["momentum"] + grad) if memory.nesterov else memory.momentum * kept["momentum"]
        return kept["residual"] + moved + grad + before.shards
    assert isinstance(memory, VarianceMemory)
    return kept["residual"] + grad + before.shards


MEMORIES: dict[str, Memory] = {
    "residual": Residual(),
    "fading": Residual(beta=0.9, gamma=0.5),
    "ef21": EF21Memory(),
    "ef21-mean": EF21Memory(eta=0.3),
    "dgc": DGCMemory(),
    "dgc-nesterov": DGCMemory(momentum=0.5, nesterov=True),
    "momentum": Momentum(),
    "variance": VarianceMemory(keep_error=True),
    "none": NoMemory(),
}

WAYS: dict[str, tuple[Compressor, str]] = {
    "allgather": (TopK(ratio=0.1), "allgather"),
    "allgather-qsgd": (QSGD(bits=4), "allgather"),
    "broadcast": (TopK(ratio=0.1), "broadcast"),
    "two_phase": (TopK(ratio=0.1), "two_phase"),
    "two_phase-qsgd": (QSGD(bits=4), "two_phase"),
    "two_phase-natural": (Natural(), "two_phase"),
    "two_phase-fp8": (FP8(), "two_phase"),
    "two_phase-bf16": (BF16(), "two_phase"),
    "allreduce": (RandomK(ratio=0.1), "allreduce"),
    "allreduce-rounds": (PowerSGD(rank=2, min_compression=1.0), "allreduce"),
    "oktopk": (OkTopk(ratio=0.1), "oktopk"),
}
"""All but sums in 16 bits, which round on their way: nobody knows what was lost there."""

STRATEGIES = ("allgather", "broadcast", "two_phase")
"""Those that carry payloads of one worker whole."""


def few(step: int, rank: int) -> Tensor:
    """Every fourth element, so that a code of two fifths of the elements loses nothing."""
    return fresh(step, rank) * (torch.arange(N) % 4 == 0)


def works(memory: str, way: str) -> bool:
    """Methods of several rounds have no payload that says what was sent."""
    return way != "allreduce-rounds" or memory in ("residual", "fading", "ef21", "ef21-mean")


def exchange_of(compressor: Compressor, memory: Memory | str | None, strategy: str | None) -> Exchange:
    return Exchange(
        compressor, memory=memory, strategy=strategy, group=dist.group.WORLD, policy=Policy(min_numel=0), force=True
    )


def _exchange(memory: str, way: str) -> Exchange:
    compressor, strategy = WAYS[way]
    return exchange_of(compressor, MEMORIES[memory], strategy)


def kept_of(exchange: Exchange) -> Kept:
    """The contribution of this rank: its buffers over the world size, and the shards that it owns."""
    world, residuals = exchange.channel.world, exchange.residuals
    place, lo = {}, 0
    for name, shape in SHAPES:
        place[name], lo = lo, lo + torch.Size(shape).numel()
    mean = {}
    for buffer, tensors in residuals.worker.items():
        mean[buffer] = torch.zeros(N, dtype=torch.float64)
        for name, tensor in tensors.items():
            mean[buffer][place[name] : place[name] + tensor.numel()] = tensor.double() / world
    shards = torch.zeros(N, dtype=torch.float64)
    for name, views in residuals.owned.items():
        for _, start, view in views:
            shards[place[name] + start : place[name] + start + view.numel()] += view
    return Kept(mean, shards)


def together(ranks: list[Kept]) -> Kept:
    """The contributions of all ranks; a buffer that is not made yet is zero."""
    shards = torch.stack([kept.shards for kept in ranks]).sum(0)
    mean: dict[str, Tensor] = defaultdict(lambda: torch.zeros_like(shards))
    for name in ranks[0].mean:
        mean[name] = torch.stack([kept.mean[name] for kept in ranks]).sum(0)
    return Kept(mean, shards)


def run_steps(rank: int, exchange: Exchange, gradients: Gradients, steps: int) -> dict[str, list[Any]]:
    outputs, before, after = [], [], []
    for step in range(steps):
        if step == AGAIN:
            exchange.forget_plans()
        flat = gradients(step, rank)
        before.append(kept_of(exchange))
        exchange.begin_step()
        exchange.run(flat, SHAPES)
        outputs.append(flat)
        after.append(kept_of(exchange))
    return {"outputs": outputs, "before": before, "after": after}


def run_each(rank: int, cases: list[tuple[str, str, str]]) -> dict[tuple[str, str, str], dict[str, list[Any]]]:
    """``run_steps`` for each memory, way and kind of gradients that is named."""
    return {case: run_steps(rank, _exchange(case[0], case[1]), GRADIENTS[case[2]], STEPS) for case in cases}


def run_lossless(rank: int) -> dict[tuple[str, str], list[Tensor]]:
    return {
        (memory, way): run_steps(rank, exchange_of(TopK(ratio=0.4), MEMORIES[memory], way), few, 3)["outputs"]
        for memory in ("none", "momentum")
        for way in STRATEGIES
    }


def approach(
    rank: int, methods: list[tuple[Compressor, str | None]], memory: Memory | str, steps: int
) -> list[list[Tensor]]:
    """The output of each method for a constant gradient after ``steps`` steps, and its mean over them."""
    results = []
    for compressor, strategy in methods:
        exchange, outputs = exchange_of(compressor, memory, strategy), []
        for step in range(steps):
            if step == AGAIN:
                exchange.forget_plans()
            flat = constant(step, rank)
            exchange.begin_step()
            exchange.run(flat, SHAPES)
            outputs.append(flat)
        results.append([outputs[-1], torch.stack(outputs).mean(0)])
    return results
