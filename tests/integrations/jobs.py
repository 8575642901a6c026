"""Work of the ranks in the tests of DDP and of plain optimizers."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.frontends.ddp import compress_ddp
from gradwire.frontends.optimizer import compress_optimizer

STREAMS = torch.version.cuda is None or torch.cuda.is_available()
"""False in a build for CUDA on a machine without a driver: there torch can make no stream."""


def model_of(width: int = 96, seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(32, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )


def batch(step: int, rank: int, size: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 32, generator=generator)
    teacher = torch.linspace(-1, 1, 320).view(32, 10).sin()
    return x, (x @ teacher).argmax(1)


def digest(module: nn.Module) -> str:
    data = torch.cat([param.detach().reshape(-1).float().cpu() for param in module.parameters()])
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()


def loss_of(module: nn.Module) -> float:
    x, y = batch(10**6, 0, 512)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(module(x), y))


def train_ddp(
    rank: int,
    compressor: str,
    steps: int,
    options: dict[str, Any],
    bucket_mb: float = 0.05,
    device: str = "cpu",
    rate: float = 0.1,
) -> dict[str, Any]:
    """``steps`` steps of DDP; ``plain`` stands for no hook at all."""
    model = DistributedDataParallel(model_of().to(device), bucket_cap_mb=bucket_mb)  # type: ignore[arg-type]
    state = compress_ddp(model, compressor, **options) if compressor != "plain" else None
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.5)
    for step in range(steps):
        x, y = (tensor.to(device) for tensor in batch(step, rank))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    metrics = state.metrics() if state else {}
    if state:
        state.close()
    return {"digest": digest(model), "loss": loss_of(model.module.cpu()), "metrics": metrics}


def train_each(
    rank: int, steps: int, options: dict[str, dict[str, Any]], device: str = "cpu", rate: float = 0.1
) -> dict[str, dict[str, Any]]:
    """``train_ddp`` for each of the compressors in ``options``, one after the other in the same group."""
    return {name: train_ddp(rank, name, steps, each, device=device, rate=rate) for name, each in options.items()}


def train_loop(rank: int, compressor: str, steps: int, options: dict[str, Any]) -> dict[str, Any]:
    model = model_of(seed=3 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    state = compress_optimizer(optimizer, model, compressor, bucket_mb=0.05, **options)
    for step in range(steps):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    metrics = state.metrics()
    state.close()
    return {"digest": digest(model), "loss": loss_of(model), "metrics": metrics, "world": dist.get_world_size()}


def note(folder: str, rank: int) -> None:
    """Tell the ranks that ``wait_for`` this one how far it is."""
    Path(folder, f"rank {rank}").touch()


def wait_for(folder: str, ranks: Iterable[int], seconds: float = 200.0) -> None:
    """Return when all these ranks have left their note, however long that takes them on a busy machine.

    Raises:
        TimeoutError: one of them has not after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while missing := [rank for rank in ranks if not Path(folder, f"rank {rank}").exists()]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"ranks {missing} left no note in {seconds:g} s")
        time.sleep(0.02)


def asked_inside(state: Any, tensor: Tensor, backward: Callable[[], object]) -> dict[str, str]:
    """The error of each call of a state in a backward pass, when the gradient of a tensor is there."""
    told: dict[str, str] = {}
    calls = {
        "state_dict": state.state_dict,
        "load_state_dict": lambda: state.load_state_dict({}),
        "change": lambda: state.change("qsgd", bits=4),
        "close": state.close,
    }
    handle = tensor.register_hook(lambda _: told.update(answers(calls)))
    backward()
    handle.remove()
    return told


def answers(calls: dict[str, Callable[[], object]]) -> dict[str, str]:
    """The error of each call."""
    told = {}
    for case, call in calls.items():
        try:
            call()
            told[case] = "nothing was raised"
        except Exception as error:
            told[case] = f"{type(error).__name__}: {error}"
    return told
