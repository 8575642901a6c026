"""Work of the ranks in the tests of modes of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW

import gradwire
from gradwire import optim
from tests.integrations.jobs import answers
from tests.modes import MODES


class Linear(nn.Module):
    """A model whose gradients are what it is given, in whatever mode they are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(64, 96)), nn.Parameter(torch.ones(64))

    def forward(self, weight: Tensor, bias: Tensor) -> Tensor:
        return (self.weight * weight).sum() + (self.bias * bias).sum()


def given(rank: int, step: int) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(10 * step + rank)
    drawn = torch.randn(64 * 97, generator=noise, dtype=torch.float32, device="cpu")
    # One step does not count, for which what is kept is taken back.
    drawn[0] = float("nan") if step == 2 else drawn[0]
    return drawn[: 64 * 96].view(64, 96), drawn[64 * 96 :]


class Training:
    """A model with what exchanges its gradients or steps.

    Args:
        wrap: distributes the model; outside of all modes, because it is not ours.
        attach: makes the state and the optimizer.
    """

    trains = True

    def __init__(self, wrap: Callable[[nn.Module], nn.Module], attach: Callable[[nn.Module], tuple[Any, Any]]) -> None:
        self.model, self.attach = wrap(Linear()), attach

    def make(self) -> None:
        self.state, self.optimizer = self.attach(self.model)

    def use(self, step: int) -> Tensor:
        self.optimizer.zero_grad()
        self.model(*given(dist.get_rank(), step)).backward()
        self.optimizer.step()
        return torch.cat(
            [getattr(each, "full_tensor", lambda own=each: own)().flatten() for each in self.model.parameters()]
        )


class Collectives:
    """A group that compresses, with its three collectives."""

    trains = False

    def make(self) -> None:
        self.state = gradwire.wrap_group(None, "blockwise8", min_numel=64, all_gather="blockwise8")

    def use(self, step: int) -> Tensor:
        world, found = dist.get_world_size(), list[Tensor]()
        for dtype in (torch.float32, torch.bfloat16):
            own = given(dist.get_rank(), step + 3)[0].flatten().to(dtype)
            part, whole = torch.empty_like(own[: len(own) // world]), torch.empty_like(own.repeat(world))
            dist.reduce_scatter_tensor(part, own, group=self.state)
            dist.all_gather_into_tensor(whole, own, group=self.state)
            dist.all_reduce(summed := own.clone(), group=self.state)
            found += [part, whole, summed]
        return torch.cat([each.float() for each in found])


def hooked(method: str) -> Callable[[], Any]:
    def attach(model: nn.Module) -> tuple[Any, Any]:
        return gradwire.compress_ddp(model, method, min_numel=1), SGD(model.parameters(), lr=0.1)

    return lambda: Training(DistributedDataParallel, attach)


def sharded() -> Any:
    def attach(model: nn.Module) -> tuple[Any, Any]:
        state = gradwire.compress_fsdp(model, "twobit", min_numel=1, weights="blockwise8")
        return state, SGD(model.parameters(), lr=0.1)

    return Training(fully_shard, attach)


def exchanged() -> Any:
    def attach(model: nn.Module) -> tuple[Any, Any]:
        optimizer = SGD(model.parameters(), lr=0.1)
        return gradwire.compress_optimizer(optimizer, model, "twobit", min_numel=1), optimizer

    return Training(lambda model: model, attach)


def stepped(kind: Any, *arguments: Any, **options: Any) -> Callable[[], Any]:
    def attach(model: nn.Module) -> tuple[Any, Any]:
        optimizer = kind(AdamW(model.named_parameters(), lr=0.1), *arguments, min_numel=1, **options)
        return optimizer, optimizer

    return lambda: Training(lambda model: model, attach)


ENTRIES: dict[str, Callable[[], Any]] = {
    "wrap_group": Collectives,
    "compress_ddp": hooked("twobit"),
    "compress_ddp, auto": hooked("auto"),
    "compress_fsdp": sharded,
    "compress_optimizer": exchanged,
    "CompressedStep": stepped(optim.CompressedStep, "powersgd", moments=1),
    "DiLoCo": stepped(optim.DiLoCo, "qsgd", every=2),
}
"""All that a script may call first in a mode of its own."""


def run(entry: str, mode: str) -> Tensor:
    """Make it in the mode, use it inside, outside, and inside again."""
    used = ENTRIES[entry]()
    inside = mode if used.trains is False or mode != "inference" else "none"
    with MODES[mode]():
        used.make()
    found = []
    for step, each in enumerate((inside, "none", "none", inside, "none")):
        with MODES[each]():
            found.append(used.use(step).detach())
    if hasattr(used.state, "close"):
        used.state.close()
    return torch.cat([each.clone() for each in found]).nan_to_num(7.0)


def modes(rank: int, entry: str) -> dict[str, str]:
    """The findings in each mode: "the same" as in none."""
    wanted = run(entry, "none")

    def compare(mode: str) -> None:
        if not torch.equal(run(entry, mode), wanted):
            raise AssertionError("another result")

    return answers({mode: lambda mode=mode: compare(mode) for mode in ("inference", "float64")})
