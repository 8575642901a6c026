"""Work of the ranks in the tests of unused, frozen and shared parameters; each function is one launch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from gradwire.frontends.ddp import GradwireState, compress_ddp
from tests.integrations.amp_jobs import kept
from tests.integrations.checkpoint_jobs import through_a_file, train
from tests.integrations.jobs import answers, batch, digest, model_of
from tests.integrations.ways_jobs import Account, Branches, Tied, backward


def wrap(module: nn.Module, method: str, **options: Any) -> tuple[DistributedDataParallel, GradwireState]:
    model = DistributedDataParallel(module, bucket_cap_mb=0.002, find_unused_parameters=True)
    return model, compress_ddp(model, method, min_numel=0, **options)


def waiting(state: GradwireState, names: list[str]) -> dict[str, Tensor]:
    """The residuals of all ranks for each parameter, as they count in the mean."""
    residuals, world = state.exchange.residuals, dist.get_world_size()
    found = {}
    for name in names:
        total = residuals.worker["residual"][name].clone() / world
        for _, lo, view in residuals.owned.get(name, []):
            total[lo : lo + view.numel()] += view
        dist.all_reduce(total)
        found[name] = total
    return found


def unused(rank: int, strategies: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """One branch is used by all ranks, the other by one, by none, and by all again; what waits is never lost."""
    return {name: unused_one(rank, options) for name, options in strategies.items()}


def unused_one(rank: int, options: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    model, state = wrap(Branches(), "topk", **options)
    account, untouched, none = Account(model), [], []
    for step, right in enumerate([True, True, rank == 0, False, False, rank == 0, True]):
        x, y = batch(step, rank)
        account.local(nn.functional.cross_entropy(model.module(x, left=not right), y))
        before = kept(state)
        model.zero_grad()
        nn.functional.cross_entropy(model(x, left=not right), y).backward()
        account.arrived()
        if step in (3, 4):
            after = kept(state)
            untouched += [torch.equal(before[name], after[name]) for name in before if "right" in name]
            none.append(model.module.right.weight.grad is None)
    left, worst = waiting(state, list(account.put)), 0.0
    for name, put in account.put.items():
        mean = put / dist.get_world_size()
        dist.all_reduce(mean)
        worst = max(worst, float((mean.flatten() - left[name] - account.got[name].flatten()).abs().max()))
    state.close()
    return {"balance": worst, "untouched": all(untouched) and len(untouched) > 3, "none": none}


def estimates(rank: int) -> dict[str, Any]:
    """EF21 and PowerSGD: their means, estimates and factors stay the same on all ranks."""
    told = {}
    for method, options in {"ef21": {}, "powersgd": {"rank": 2}, "dgc": {"ratio": 0.1}}.items():
        torch.manual_seed(0)
        model, _ = wrap(Branches(), method, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            x, y = batch(step, rank)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x, left=step in (1, 2, 4) or (step == 5 and rank == 0)), y).backward()
            optimizer.step()
        told[method] = digest(model)
    return told


def joined(rank: int, strategies: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Uneven inputs from the first step on: the buckets are rebuilt while one rank has left."""
    told: dict[str, Any] = {}
    for name, (method, options) in strategies.items():
        model = DistributedDataParallel(model_of(), bucket_cap_mb=0.02)
        state = compress_ddp(model, method, min_numel=128, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Join([model]):
            for step in range(1 + 2 * rank):
                optimizer.zero_grad()
                backward(model, step, rank)
                optimizer.step()
        told[name] = digest(model), state.metrics()["steps"]
        state.close()
    model = DistributedDataParallel(model_of())
    compress_ddp(model, "topk")
    with Join([model], divide_by_initial_world_size=False):
        told["refused"] = answers({"": lambda: backward(model, 0, rank)})[""]
    return told


def frozen(rank: int) -> dict[str, Any]:
    """A layer is frozen and unfrozen, each time with a new DDP and a new state: what waits for it comes back."""
    module, told = model_of(), {}

    def anew(saved: dict[str, Any] | None = None) -> tuple[DistributedDataParallel, GradwireState]:
        model = DistributedDataParallel(module, bucket_cap_mb=0.02)
        state = compress_ddp(model, "topk", ratio=0.05, min_numel=128)
        if saved is not None:
            state.load_state_dict(saved)
        return model, state

    model, state = anew()
    train(model, range(2), rank)
    first = kept(state)
    module[0].requires_grad_(False)
    model, state = anew(through_a_file(state.state_dict()))
    train(model, range(2, 4), rank)
    second = kept(state)
    told["kept"] = torch.equal(first["residual/0.weight"], second["residual/0.weight"])
    told["moved"] = not torch.equal(first["residual/2.weight"], second["residual/2.weight"])
    module[0].requires_grad_(True)
    told["late"] = answers({"": lambda: train(model, range(4, 5), rank)})[""]
    model, state = anew(through_a_file(state.state_dict()))
    told["back"] = torch.equal(first["residual/0.weight"], kept(state)["residual/0.weight"])
    train(model, range(4, 6), rank)
    told["sent"] = not torch.equal(first["residual/0.weight"], kept(state)["residual/0.weight"])
    return told | {"digest": digest(module)}


def tied(rank: int) -> dict[str, Any]:
    """Two layers with one weight: it has one residual, which a checkpoint keeps."""
    model, state = wrap(Tied(), "topk")
    train(model, range(3), rank)
    saved, weights = through_a_file(state.state_dict()), through_a_file(model.state_dict())
    unbroken = train(model, range(3, 6), rank)
    again, fresh = wrap(Tied(), "topk")
    fresh.load_state_dict(saved)
    again.load_state_dict(weights)
    return {
        "same": train(again, range(3, 6), rank) == unbroken,
        "names": sorted(n for n in kept(state) if "weight" in n),
    }
