"""Work of ranks that agree on a threshold."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.compressors.base import Compressor
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from tests.strategies.jobs import SHAPES, gradient, kept, numel, owned

SCALE, JUMP = 1e-4, 12


def own_gradient(step: int, rank: int) -> Tensor:
    """Ranks of different scale, of which one jumps."""
    return gradient(step, rank, numel(SHAPES)) * SCALE * (1 + rank) * (100 if step >= JUMP and rank == 1 else 1)


class Sent:
    """An exchange that remembers the thresholds in the payloads that its rank encoded, by tensor and by phase."""

    def __init__(self, compressor: Compressor, strategy: str) -> None:
        group = dist.group.WORLD
        self.exchange = Exchange(compressor, strategy=strategy, group=group, policy=Policy(min_numel=64), seed=3)
        self.rank = dist.get_rank()

    def step(self, step: int, spoilt: bool = False) -> Tensor:
        flat = own_gradient(step, self.rank)
        if spoilt and self.rank == 1:
            flat[7] = math.nan
        self.exchange.begin_step()
        self.exchange.run(flat, SHAPES)
        return flat

    def thresholds(self) -> dict[str, float]:
        agreed = {name: state["agreed"].tolist() for name, state in self.exchange.residuals.states.items()}
        return {name: wish / weight if weight > 0 else math.nan for name, (wish, weight) in agreed.items()}


def agree(rank: int, compressors: Sequence[tuple[Compressor, str]], steps: int) -> list[dict[str, Any]]:
    """Results of each compressor with its strategy: outputs, thresholds after each step, residuals, whether a bad step
    left a trace, and the outputs of a run that was resumed in the middle."""
    return [one(compressor, strategy, steps) for compressor, strategy in compressors]


def one(compressor: Compressor, strategy: str, steps: int) -> dict[str, Any]:
    run, outputs, thresholds, saved = Sent(compressor, strategy), [], [], {}
    for step in range(steps):
        outputs.append(run.step(step))
        thresholds.append(run.thresholds())
        if step == steps // 2:
            before = copy.deepcopy(run.exchange.state_dict())
            bad = run.step(step, spoilt=True)
            saved = copy.deepcopy(run.exchange.state_dict())
    left = {"residuals": [kept(run.exchange)], "owned": owned(run.exchange), "outputs": outputs}
    return {
        **left,
        "thresholds": thresholds,
        "bad": bad,
        "trace": differences(before, saved, "states") + differences(before, saved, "worker"),
        "resumed": resumed(Sent(compressor, strategy), saved, steps),
        "metrics": run.exchange.metrics(),
    }


def resumed(run: Sent, saved: dict[str, Any], steps: int) -> list[Tensor]:
    run.exchange.load_state_dict(saved)
    return [run.step(step) for step in range(steps // 2 + 1, steps)]


def differences(before: dict[str, Any], after: dict[str, Any], kind: str) -> list[str]:
    (old,), (new,) = before["ranks"].values(), after["ranks"].values()
    return [
        f"{outer}/{inner}"
        for outer, tensors in new[kind].items()
        for inner, tensor in tensors.items()
        if not torch.equal(tensor, old[kind][outer][inner])
    ]
