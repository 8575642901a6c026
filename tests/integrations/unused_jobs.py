"""Work of the ranks in the tests of parameters without a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradwire.auto.choices import DENSE
from gradwire.auto.controller import AutoController
from gradwire.auto.recorder import LONGEST
from gradwire.compressors.sparse.topk import TopK
from gradwire.engine.exchange import Exchange
from gradwire.engine.strategies.allgather import AllGather
from gradwire.frontends.ddp import GradwireState, compress_ddp, gradwire_hook
from gradwire.frontends.optimizer import compress_optimizer
from gradwire.optim import OneBitAdam, ZeroOneAdam
from tests.integrations.jobs import digest


def branches() -> nn.ModuleDict:
    torch.manual_seed(0)
    names = ("used", "never", "paused", "elsewhere")
    return nn.ModuleDict({name: nn.Linear(48, 48, bias=False) for name in names})


def backward(model: nn.ModuleDict, step: int, rank: int, pause: range) -> None:
    """Nobody uses ``never``; nobody uses ``paused`` in the pause; only rank 0 uses ``elsewhere`` then."""
    x = torch.randn(8, 48, generator=torch.Generator().manual_seed(10 * step + rank))
    names = ["used"] + ["paused"] * (step not in pause) + ["elsewhere"] * (step not in pause or rank == 0)
    sum((model[name](x).square().mean() for name in names), torch.zeros(())).backward()


def kept_of(exchange: Exchange, name: str) -> list[Tensor]:
    return [tensor.clone() for tensor in exchange.residuals.tensors_of(name)]


def train(
    rank: int, steps: int, pause: range, make: Callable[[nn.ModuleDict], tuple[Optimizer, Exchange]]
) -> dict[str, Any]:
    """The way of the branches in the pause and after it, and true if their residuals stayed as they were."""
    model = branches()
    optimizer, exchange = make(model)
    start = {name: param.detach().clone() for name, param in model.named_parameters()}
    told: dict[str, Any] = {"no gradient": []}
    for step in range(steps):
        if step == pause.start:
            before = {name: param.detach().clone() for name, param in model.named_parameters()}
            kept = kept_of(exchange, "paused.weight")
        optimizer.zero_grad()
        backward(model, step, rank, pause)
        optimizer.step()
        if step in pause:
            told["no gradient"].append([name for name, param in model.named_parameters() if param.grad is None])
        if step == pause.stop - 1:
            now = dict(model.named_parameters())
            told["moved in the pause"] = [name for name in before if not torch.equal(before[name], now[name])]
            after = kept_of(exchange, "paused.weight")
            told["waits"] = sum(float(tensor.abs().sum()) for tensor in kept)
            told["kept"] = len(kept) == len(after) and all(map(torch.equal, kept, after))
    now = dict(model.named_parameters())
    told["moved at all"] = [name for name in start if not torch.equal(start[name], now[name])]
    return told | {"digest": digest(model)}


class Branching(nn.Module):
    """Branches, of which each call names those that it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = branches()

    def forward(self, x: Tensor, names: Sequence[str]) -> Tensor:
        return sum((self.branches[name](x).square().mean() for name in names), torch.zeros(()))


def methods_left(rank: int, way: str, pause: tuple[int, int]) -> dict[str, Any]:
    """Twelve steps in which auto's decisions give all branches a method that keeps values back in the first step,
    another one in the fifth, and none in the ninth. Nobody uses ``paused`` in the pause, counted from 1.

    Returns:
        The gradients of each branch as they arrived, added up over all steps, the mean of those that the ranks had, and
        the branches for which something waited to be sent after each step.
    """
    model = Branching()
    params = dict(model.named_parameters())
    decisions = [
        {"step": step, "choices": [{"method": method, "strategy": "allgather", "params": [*params]}]}
        for step, method in ((1, "topk:ratio=0.05"), (5, "topk:ratio=0.2"))
    ]
    options: dict[str, Any] = {"decisions": [*decisions, {"step": 9, "choices": []}], "min_numel": 0}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    called: nn.Module = model
    if way == "DDP":
        called = DistributedDataParallel(model, find_unused_parameters=True)
        exchange = compress_ddp(called, "auto", **options).exchange
    elif way == "DDP, plain form":
        called = DistributedDataParallel(model, find_unused_parameters=True)
        state = GradwireState(model, "auto", **options)
        called.register_comm_hook(state, gradwire_hook)
        exchange = state.exchange
    else:
        exchange = compress_optimizer(optimizer, model, "auto", **options).exchange
    arrived, own = ({name: torch.zeros_like(param) for name, param in params.items()} for _ in range(2))
    waits = []
    for step in range(1, 13):
        x = torch.randn(8, 48, generator=torch.Generator().manual_seed(100 * step + rank))
        paused = step in range(*pause)
        names = ["used"] + ["paused"] * (not paused) + ["elsewhere"] * (not paused or rank == 0)
        found = torch.autograd.grad(model(x, names), list(params.values()), allow_unused=True)
        for sent, grad in zip(own.values(), found, strict=True):
            sent += 0 if grad is None else grad
        optimizer.zero_grad()
        called(x, names).backward()
        optimizer.step()
        for name, param in params.items():
            arrived[name] += 0 if param.grad is None else param.grad
        waits.append([name.split(".")[1] for name in params if exchange.leftovers.of([name])])
    for sent in own.values():
        dist.all_reduce(sent)
        sent /= dist.get_world_size()
    return {"arrived": arrived, "own": own, "waits": waits}


def never_again(rank: int) -> dict[str, Any]:
    """A method that keeps values back is left while something waits for ``paused``, which nobody uses any more: whether
    each step was left to DDP. Then it is used again.

    Returns:
        The gradients of it that arrived, and the mean of those that the ranks had.
    """
    model = Branching()
    name = "branches.paused.weight"
    param = dict(model.named_parameters())[name]
    called = DistributedDataParallel(model, find_unused_parameters=True)
    exchange = compress_ddp(called, "auto", min_numel=0).exchange
    controller = exchange.controller
    assert isinstance(controller, AutoController)
    controller.model.candidates = [DENSE]  # Whatever times this machine shows, nothing else is decided.
    arrived, own, idle = torch.zeros_like(param), torch.zeros_like(param), []

    def step(number: int, names: Sequence[str]) -> None:
        x = torch.randn(8, 48, generator=torch.Generator().manual_seed(100 * number + rank))
        if "paused" in names:
            own.add_(torch.autograd.grad(model(x, names), [param])[0])
        param.grad = None
        called(x, names).backward()
        arrived.add_(0 if param.grad is None else param.grad)

    exchange.assign({name: (TopK(ratio=0.05), AllGather())})
    for number in range(3):
        step(number, ["used", "paused"])
    exchange.assign({})
    for number in range(3, 3 + 2 * LONGEST):
        step(number, ["used"])
        idle.append(controller.idle)
    waited = bool(exchange.leftovers.waiting)
    for number in range(3 + 2 * LONGEST, 3 + 4 * LONGEST):
        step(number, ["used", "paused"])
    exchange.end_step()
    dist.all_reduce(own)
    own /= dist.get_world_size()
    return {"idle": idle, "waited": waited, "waits": bool(exchange.leftovers.waiting), "arrived": arrived, "own": own}


def plain_loop(rank: int, method: str, options: dict[str, Any]) -> dict[str, Any]:
    def make(model: nn.ModuleDict) -> tuple[Optimizer, Exchange]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
        state = compress_optimizer(optimizer, model, method, min_numel=0, bucket_mb=0.02, **options)
        return optimizer, state.exchange

    return train(rank, 7, range(3, 5), make)


def one_bit(rank: int, pause: tuple[int, int], *, decoupled: bool) -> dict[str, Any]:
    """Exact steps end after the fourth."""

    def make(model: nn.ModuleDict) -> tuple[Optimizer, Exchange]:
        optimizer = OneBitAdam(
            model.named_parameters(), lr=0.01, weight_decay=0.5, freeze_step=4, decoupled=decoupled, min_numel=0
        )
        return optimizer, optimizer.exchange

    return train(rank, 9, range(*pause), make)


def zero_one(rank: int, pause: tuple[int, int]) -> dict[str, Any]:
    """From the fifth step on every second step is local."""

    def make(model: nn.ModuleDict) -> tuple[Optimizer, Exchange]:
        optimizer = ZeroOneAdam(
            model.named_parameters(),
            lr=0.01,
            weight_decay=0.5,
            var_freeze_step=3,
            var_update_scaler=1,
            local_step_scaler=1,
            local_step_clipper=2,
            min_numel=0,
        )
        return optimizer, optimizer.exchange

    return train(rank, 10, range(*pause), make)
