"""Work of the ranks in the tests of optimizers."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.optim import CompressedStep, DiLoCo, MicroAdam, OneBitAdam, QsparseLocal, ZeroOneAdam
from gradwire.optim.exchanged import Exchanged
from gradwire.optim.local.local_steps import LocalSteps
from gradwire.testing.processes import run_ranks
from tests.once import once

Options = dict[str, Any]


def model_of(seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def batch(step: int, rank: int, size: int = 16) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 32, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, (x @ torch.linspace(-1, 1, 320).view(32, 10).sin()).argmax(1)


def loss_of(model: nn.Module) -> float:
    x, y = batch(10**6, 0, 512)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(x), y))


def digest(tensors: Any) -> str:
    """One for all tensors in a nest of dicts and lists, and whatever else is in there."""
    if isinstance(tensors, Tensor):
        return hashlib.sha256(tensors.detach().contiguous().numpy().tobytes()).hexdigest()
    if isinstance(tensors, dict):
        return digest([[str(key), digest(tensors[key])] for key in sorted(tensors, key=str)])
    if isinstance(tensors, list | tuple):
        tensors = [digest(each) if isinstance(each, Tensor | dict | list) else each for each in tensors]
    return hashlib.sha256(repr(tensors).encode()).hexdigest()


def parameters(model: nn.Module) -> str:
    return digest([param.detach() for param in model.parameters()])


def make(kind: str, model: nn.Module, options: Options) -> Exchanged:
    if kind == "onebit_adam":
        return OneBitAdam(model.named_parameters(), lr=3e-3, **options)
    if kind == "zeroone_adam":
        return ZeroOneAdam(model.named_parameters(), lr=3e-3, **options)
    if kind == "micro_adam":
        return MicroAdam(model.named_parameters(), lr=3e-3, **options)
    if kind == "diloco":
        return DiLoCo(torch.optim.AdamW(model.named_parameters(), lr=3e-3), **options)
    if kind == "compressed_step":
        return CompressedStep(torch.optim.AdamW(model.named_parameters(), lr=3e-3), **options)
    inner = torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.5)
    return QsparseLocal(inner, **options)


def forward(model: nn.Module, optimizer: Optimizer, step: int, rank: int) -> Tensor:
    x, y = batch(step, rank)
    optimizer.zero_grad()
    return nn.functional.cross_entropy(model(x), y)


def train(rank: int, kind: str, steps: int, options: Options) -> dict[str, Any]:
    """Ranks start apart; what they hold in the end, and after every step that leaves them in step."""
    model = model_of(seed=3 + rank)
    optimizer = make(kind, model, options)
    digests = []
    for step in range(steps):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
        if getattr(optimizer, "in_step", True):
            digests.append(parameters(model))
    return {"digests": digests, "loss": loss_of(model), "metrics": optimizer.metrics()}


def train_dense(rank: int, make_optimizer: Callable[[Any], Optimizer], steps: int) -> dict[str, Any]:
    """The same steps on averaged gradients with an optimizer of torch."""
    model = model_of()
    optimizer = make_optimizer(model.parameters())
    digests = []
    for step in range(steps):
        forward(model, optimizer, step, rank).backward()
        for param in model.parameters():
            assert param.grad is not None
            param.grad.div_(dist.get_world_size())
            dist.all_reduce(param.grad)
        optimizer.step()
        digests.append(parameters(model))
    return {"digests": digests, "loss": loss_of(model)}


@once
def dense_loss(make_optimizer: Callable[[Any], Optimizer], steps: int) -> float:
    """The loss of two ranks after ``train_dense``."""
    return float(run_ranks(2, train_dense, make_optimizer, steps)[0]["loss"])


def adamw(params: Any) -> Optimizer:
    return torch.optim.AdamW(params, lr=3e-3, weight_decay=0.0)


def sgd(params: Any) -> Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.5)


def resume(rank: int, kind: str, cut: int, steps: int, options: Options) -> bool:
    """Return whether a run that stops at ``cut`` and goes on with new objects ends where an uninterrupted one does."""
    model = model_of()
    optimizer = make(kind, model, options)
    saved: list[Any] = []
    for step in range(steps):
        if step == cut:
            saved = [copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())]
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
    again = model_of(seed=9)
    other = make(kind, again, options)
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    for step in range(cut, steps):
        forward(again, other, step, rank).backward()
        other.step()
    same = parameters(again) == parameters(model)
    return same and digest(other.state_dict()) == digest(optimizer.state_dict())


def kept(optimizer: Exchanged) -> str:
    """All that an optimizer keeps but the counts, which go on."""
    state = optimizer.state_dict()
    exchange = {key: value for key, value in state["exchange"].items() if key != "step"}
    inner = state["state"] if "progress" in state else [list(each.values()) for each in state["state"].values()]
    return digest([inner, exchange, state.get("kept", {}), state.get("window", [])])


def poisoned(rank: int, kind: str, at: int, options: Options) -> dict[str, Any]:
    """Rank 1's gradient is NaN at a step: what was kept before and after it, and whether training goes on."""
    model = model_of()
    optimizer = make(kind, model, options)
    told: dict[str, Any] = {}
    for step in range(at + 5):
        loss = forward(model, optimizer, step, rank)
        (loss * (float("nan") if (step, rank) == (at, 1) else 1.0)).backward()
        before = parameters(model), kept(optimizer)
        optimizer.step()
        if step == at:
            told |= {"parameters": parameters(model) == before[0], "kept": kept(optimizer) == before[1]}
    count = optimizer.metrics()["nonfinite_steps"]
    return {**told, "end": parameters(model), "finite": loss_of(model) < 10, "count": count}


def poisoned_in_one(rank: int, kind: str, at: int, spoilt: str, options: Options) -> dict[str, Any]:
    """One parameter of rank 1 is spoilt before an exchange: whether everything is as it was after the last one."""
    model = model_of()
    optimizer = make(kind, model, options)
    local = isinstance(optimizer, LocalSteps)
    param = dict(model.named_parameters())[spoilt]
    told: dict[str, Any] = {}
    for step in range(at + 4):
        forward(model, optimizer, step, rank).backward()
        if not local or step % optimizer.every == 0:
            met = parameters(model), shared(optimizer)
        if (step, rank) == (at, 1):
            with torch.no_grad():
                (param if local else param.grad).view(-1)[3] = float("inf")
        optimizer.step()
        if step == at:
            told = {"as before": (parameters(model), shared(optimizer)) == met}
            told["waits"] = float(optimizer.metrics()["residual_norm"]) > 0
    return {**told, "end": parameters(model), "finite": loss_of(model) < 10}


def all_poisoned_in_one(rank: int, jobs: list[tuple[str, int, str, Options]]) -> list[dict[str, Any]]:
    return [poisoned_in_one(rank, *job) for job in jobs]


def shared(optimizer: Exchanged) -> str:
    """All that an exchange may change but the counts."""
    state = optimizer.state_dict()
    exchange = {key: value for key, value in state["exchange"].items() if key != "step"}
    own = state["state"] if "progress" in state else []
    return digest([exchange, state.get("kept", {}), own, state.get("window", [])])


def refused(rank: int, kind: str, options: Options) -> str:
    try:
        make(kind, model_of(), options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
