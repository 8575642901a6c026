"""Steps with torch's own communication hooks on two workers over Gloo."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks
from torch.nn.parallel import DistributedDataParallel

from tests.integrations.jobs import answers, batch, model_of

HOOKS = {
    "bf16": default_hooks.bf16_compress_hook,
    "pertensor": quantization_hooks.quantization_pertensor_hook,
    "perchannel": quantization_hooks.quantization_perchannel_hook,
}


def train(model: nn.Module, steps: int) -> None:
    for step in range(steps):
        x, y = batch(step, dist.get_rank())
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()


def powersgd(hook: Any, start: int = 2, **settings: Any) -> tuple[nn.Module, Any]:
    model = DistributedDataParallel(model_of())
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=start, **settings)
    model.register_comm_hook(state, hook)
    return model, state


def simple(rank: int, name: str) -> str:
    """The error of a step with one of the hooks, or of its registration."""
    model = DistributedDataParallel(model_of())

    def work() -> None:
        model.register_comm_hook(dist.group.WORLD, HOOKS[name])
        train(model, 1)

    return answers({"step": work})["step"]


def several(rank: int) -> dict[str, Any]:
    return {"saved": saved(), "bf16": simple(rank, "bf16"), "batched": batched()}


def batched() -> list[str]:
    """The errors of the batched hook in the steps before it compresses, and in the first in which it does."""
    model, _ = powersgd(powerSGD_hook.batched_powerSGD_hook)
    return list(answers({"before": lambda: train(model, 2), "then": lambda: train(model, 1)}).values())


def saved() -> dict[str, Any]:
    """The number of tensors that compressed steps add to a checkpoint, and the types of the keys of residuals."""
    model, state = powersgd(powerSGD_hook.powerSGD_hook)
    train(model, 4)
    early = answers({"early": lambda: powersgd(powerSGD_hook.powerSGD_hook, start=1)})["early"]
    return {
        "in the checkpoint": len(model.state_dict()) - len(list(model.parameters())),
        "kept by": [type(key).__name__ for key in state.error_dict],
        "early": early,
    }


def differ(rank: int) -> None:
    """Steps in which the ranks approximate by factors of different sizes."""
    train(powersgd(powerSGD_hook.powerSGD_hook, matrix_approximation_rank=1 + rank)[0], 4)
