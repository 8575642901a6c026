"""What the fragments of the documentation find when they run: two workers, a model, an optimizer.

The fragments of a page run one after the other in one namespace. In front of each stands a fresh model of a kind that
follows from the page, and behind it the model takes a step.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

WIDTH = 64


class Network(nn.Module):
    """With the names that examples of patterns use."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def plain() -> nn.Module:
    return Network()


def wrapped() -> nn.Module:
    return DistributedDataParallel(Network())


MODELS: dict[str, Callable[[], nn.Module]] = {"docs/fsdp.md": plain, "docs/optim.md": plain}
"""Pages whose ``model`` is not a DDP model."""


def names(page: str) -> dict[str, Any]:
    """What a page need not say again."""
    world = dist.get_world_size()
    return {
        "__name__": "__main__", "torch": torch, "dist": dist, "gradwire": gradwire,
        "DistributedDataParallel": DistributedDataParallel, "device": "cpu", "nodes": world, "gpus": 1,
        "state": taken(wrapped()),
    } | fresh(page)  # fmt: skip


def taken(model: nn.Module) -> gradwire.GradwireState:
    """The state of a run that has begun, and files that three workers of such a run would have left."""
    state = gradwire.compress_ddp(model, "topk", ratio=0.01)
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    saved = state.state_dict()
    for rank in range(3) if dist.get_rank() == 0 else ():
        torch.save({**saved, "world": 3, "ranks": {str(rank): saved["ranks"]["0"]}}, f"residuals-{rank}.pt")
    dist.barrier()
    return state


def fresh(page: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = MODELS.get(page, wrapped)()
    # A module that one block gave a state takes no other.
    return {"model": model, "network": Network(), "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


def trains(model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Whether they are still of the kind that stood here, and belong together."""
    own = {id(param) for param in model.parameters()}
    ours = isinstance(getattr(model, "module", model), Network)
    return ours and all(id(param) in own for group in optimizer.param_groups for param in group["params"])


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randint(32, (16,))), torch.randint(8, (16,)))
    loss.backward()
    optimizer.step()
    assert all(bool(param.isfinite().all()) for param in model.parameters())


def run_fragments(rank: int, page: str, codes: list[tuple[str, str]], folder: str) -> None:
    """On each worker, in one folder for all; ``codes`` are (place, code)."""
    os.chdir(folder)
    known = names(page)
    for place, code in codes:
        known |= fresh(page)
        execute(code, place, known)
        if trains(known["model"], known["optimizer"]):
            step(known["model"], known["optimizer"])


def run_script(rank: int, port: int, place: str, code: str, folder: str) -> str:
    """As torchrun starts it; returns what it printed. The group of the test itself is given up for its own."""
    world = dist.get_world_size()
    dist.barrier()  # a rank that left now would cut off one that is still connecting
    dist.destroy_process_group()
    os.chdir(folder)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
    }  # fmt: skip
    return execute(code, place, {"__name__": "__main__"})


def execute(code: str, place: str, known: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, place, "exec"), known)
    return printed.getvalue()
