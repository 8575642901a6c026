"""The mistakes of docs/troubleshooting.md, made for real: each function returns what the user is told.

Those in ``TOGETHER`` leave the default group as it was and follow each other in one group of two ranks; those in
``APART`` lose a rank and have a group of their own; those in ``ALONE`` need no group.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.frontends.adapters.tensorboard import TensorBoardWriter
from tests.extras import variables

PATIENCE = 5.0
"""Seconds that a rank waits for another one that does not come."""


class Branches(nn.Module):
    """A layer that every forward pass uses, and one that none uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


class Heard(logging.Handler):
    """Keeps what gradwire logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def __enter__(self) -> list[str]:
        logging.getLogger("gradwire").addHandler(self)
        return self.lines

    def __exit__(self, *_: object) -> None:
        logging.getLogger("gradwire").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def wrapped() -> DistributedDataParallel:
    return DistributedDataParallel(nn.Sequential(nn.Linear(64, 64)))


def backward(model: nn.Module, scale: float = 1.0) -> None:
    (scale * model(torch.ones(2, 64)).sum()).backward()


def told(mistake: Callable[[], object]) -> str:
    """The text of a mistake's error."""
    try:
        mistake()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def module_inside(rank: int) -> str:
    model = wrapped()
    return told(lambda: gradwire.compress_ddp(model.module, "topk"))


def no_hook(rank: int) -> str:
    class Nowhere:
        def add_scalar(self, *_: Any) -> None:
            """Show nothing."""

    model = wrapped()
    writer = TensorBoardWriter(gradwire.GradwireState(model, "topk"), Nowhere(), every=1)
    with Heard() as lines:
        backward(model)
        writer.step()
    return "\n".join(lines)


def small_parameters(rank: int) -> str:
    with Heard() as lines:
        gradwire.compress_ddp(wrapped(), "topk", min_numel=10_000)
    return "\n".join(lines)


def twice(rank: int) -> str:
    model = wrapped()
    gradwire.compress_ddp(model, "topk")
    return told(lambda: gradwire.compress_ddp(model, "qsgd"))


def different_arguments(rank: int) -> str:
    return told(lambda: gradwire.compress_ddp(wrapped(), "topk", ratio=(0.01, 0.02)[rank]))


def wrong_pattern(rank: int) -> str:
    return told(lambda: gradwire.compress_ddp(DistributedDataParallel(Branches()), "topk", exclude=["use.*"]))


def left_out_step(rank: int) -> str:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradwire.compress_optimizer(optimizer, model, "topk")
    text = ""
    for step in range(2):
        optimizer.zero_grad()
        backward(model)
        if (rank, step) != (1, 0):
            text = told(optimizer.step)
    return text


def unused_parameters(rank: int) -> str:
    model = DistributedDataParallel(Branches())
    gradwire.compress_ddp(model, "topk")
    backward(model)
    return told(lambda: backward(model))


def traced_unused_parameters(rank: int) -> str:
    before, torch._dynamo.config.optimize_ddp = torch._dynamo.config.optimize_ddp, "python_reducer"
    try:
        model = DistributedDataParallel(Branches())
        gradwire.compress_ddp(model, "topk")
        backward(model)
        return told(torch.optim.SGD(model.parameters(), lr=0.1).step)
    finally:
        torch._dynamo.config.optimize_ddp = before


def other_world(rank: int) -> str:
    model = wrapped()
    state = gradwire.compress_ddp(model, "topk")
    backward(model)
    saved = {**state.state_dict(), "world": 4}
    return told(lambda: state.load_state_dict(saved))


def no_scaler(rank: int) -> str:
    model, scaler = nn.Linear(64, 64), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradwire.compress_optimizer(optimizer, model, "topk")
    scaler.scale(model(torch.ones(2, 64)).sum()).backward()
    return told(lambda: scaler.step(optimizer))


def overflow(rank: int) -> str:
    model = wrapped()
    state = gradwire.compress_ddp(model, "topk")
    backward(model, float("inf") if rank == 1 else 1.0)
    grad = next(model.parameters()).grad
    assert grad is not None
    assert grad.isnan().all(), "on both ranks"
    return f"nonfinite_steps: {state.metrics()['nonfinite_steps']}"


def below_the_threshold(rank: int) -> str:
    model = wrapped()
    state = gradwire.compress_ddp(model, "twobit", threshold=0.5)
    norms = []
    for _ in range(3):
        model.zero_grad()
        backward(model, 1e-4)
        norms.append(state.metrics()["residual_norm"])
    grad = model.module[0].weight.grad
    assert not grad.any(), "nothing arrives"
    return "residual_norm grows" if norms == sorted(set(norms)) else f"residual_norm: {norms}"


def one_rank_alone(rank: int) -> str:
    model = wrapped()
    with Heard() as lines:  # a warning after 10 s, and time enough for it before the error
        text = told(lambda: gradwire.compress_ddp(model, "topk", timeout=20)) if rank == 0 else ""
    return "\n".join([*lines, text])


def lost_rank(rank: int) -> str:
    model = wrapped()
    gradwire.compress_ddp(model, "topk")
    return told(lambda: backward(model)) if rank == 0 else ""


def busy_rank(rank: int) -> str:
    model, store = wrapped(), dist.distributed_c10d._get_default_store()
    gradwire.compress_ddp(model, "topk", timeout=PATIENCE)
    if rank == 1:
        store.wait(["given up"])
        return ""
    text = told(lambda: backward(model))
    store.set("given up", "")
    return text


def alone(code: str, **environment: str) -> str:
    """The last lines that a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env={**os.environ, **environment}
    )
    return done.stdout + done.stderr


def no_process_group() -> str:
    """In the process of the test, which has none."""
    assert not dist.is_initialized()
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return told(lambda: gradwire.compress_optimizer(optimizer, model, "topk"))


def no_interface() -> str:
    return alone(
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())",
        GLOO_SOCKET_IFNAME="eth99",
    )


def no_extra() -> str:
    return alone("from gradwire import kvstore\nkvstore.create('dist_sync')", **variables("cli"))


def no_kernels() -> str:
    return alone(
        "import sys\nsys.modules['gradwire._kernels'] = None\nimport gradwire\n"
        "gradwire.Exchange(gradwire.compressor('twobit'))"
    )


TOGETHER: Mapping[str, Callable[[int], str]] = {
    "ddp-module": module_inside,
    "no-hook": no_hook,
    "nothing-compressed": small_parameters,
    "second-hook": twice,
    "different-arguments": different_arguments,
    "pattern": wrong_pattern,
    "left-out-step": left_out_step,
    "unused-parameters": unused_parameters,
    "python-reducer": traced_unused_parameters,
    "other-world": other_world,
    "no-scaler": no_scaler,
    "nan": overflow,
    "threshold": below_the_threshold,
}
APART: Mapping[str, Callable[[int], str]] = {
    "one-rank-alone": one_rank_alone,
    "lost-rank": lost_rank,
    "busy-rank": busy_rank,
}
ALONE: Mapping[str, Callable[[], str]] = {
    "no-process-group": no_process_group,
    "gloo-interface": no_interface,
    "extra": no_extra,
    "no-kernels": no_kernels,
}
"""Mistakes by the id of the section of the page that explains each."""


def make_all(rank: int) -> dict[str, str]:
    """The errors of this rank for each mistake in ``TOGETHER``, which both ranks make."""
    texts = {}
    for name, mistake in TOGETHER.items():
        texts[name] = mistake(rank)
        dist.barrier()
    return texts
