"""Work of the ranks in the tests of DDP runs that go on; each function is one launch."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.frontends.ddp import GradwireState, compress_ddp
from tests.integrations.amp_jobs import kept, same
from tests.integrations.checkpoint_jobs import through_a_file, train
from tests.integrations.jobs import answers, batch, digest, model_of


def wrapped(method: str, options: dict[str, Any], **ddp: Any) -> tuple[DistributedDataParallel, GradwireState]:
    model = DistributedDataParallel(model_of(), **{"bucket_cap_mb": 0.02, **ddp})
    return model, compress_ddp(model, method, min_numel=128, **options)


def goes_on(rank: int, cases: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Compare, for each case, training that was not interrupted with that of a fresh model from a file."""
    return {case: gone_on(rank, method, options) for case, (method, options) in cases.items()}


def gone_on(rank: int, method: str, options: dict[str, Any], changed: bool = False, **ddp: Any) -> dict[str, Any]:
    """Compared in what it gives and keeps; ``changed``: another method was used up to the checkpoint."""
    model, state = wrapped("topk" if changed else method, {} if changed else options, **ddp)
    train(model, range(3), rank)
    if changed:
        state.change(method, **options)
    weights, saved = through_a_file(model.state_dict()), through_a_file(state.state_dict())
    unbroken = train(model, range(3, 6), rank)
    again, fresh = wrapped(method, options, **ddp)
    train(again, range(1), rank)
    first = json.loads(fresh.state_dict()["buckets"])
    fresh.close()
    again, fresh = wrapped(method, options, **ddp)
    fresh.load_state_dict(saved)
    again.load_state_dict(weights)
    resumed = train(again, range(3, 6), rank)
    told = {
        "weights": resumed == unbroken,
        "kept": same(kept(state), kept(fresh)),
        "rebuilt": first != json.loads(saved["buckets"]),
        "buckets": fresh.state_dict()["buckets"] == state.state_dict()["buckets"],
    }
    for each in (state, fresh):
        each.close()
    return told


class PartlyDouble(nn.Module):
    """A model whose last layer, the first in the buckets, no method takes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(40, 40) for _ in range(3)))
        self.last = nn.Linear(40, 4).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(x).relu().double())  # type: ignore[no-any-return]


def counted(rank: int) -> dict[str, Any]:
    """The steps that a resumed run counts, whose first bucket is exchanged in its place, and whether bits are equal."""

    def made() -> tuple[DistributedDataParallel, GradwireState]:
        torch.manual_seed(0)
        model = DistributedDataParallel(PartlyDouble(), bucket_cap_mb=0.005)
        return model, compress_ddp(model, "qsgd", bits=4, min_numel=16)

    def steps(model: nn.Module, state: GradwireState, numbers: range) -> list[int]:
        counts = []
        for number in numbers:
            x = torch.randn(8, 40, generator=torch.Generator().manual_seed(10 * number + rank))
            model.zero_grad()
            model(x).square().mean().backward()
            with torch.no_grad():
                for param in model.parameters():
                    param.sub_(param.grad, alpha=0.1)  # type: ignore[arg-type]
            counts.append(state.exchange.step)
        return counts

    model, state = made()
    steps(model, state, range(5))
    weights, saved = through_a_file(model.state_dict()), through_a_file(state.state_dict())
    unbroken = steps(model, state, range(5, 9))
    again, fresh = made()
    again.load_state_dict(weights)
    fresh.load_state_dict(saved)
    told = {"counts": (unbroken, steps(again, fresh, range(5, 9)))}
    return {**told, "same": digest(again) == digest(model)}


def others(rank: int, folder: str) -> dict[str, Any]:
    """Other sizes of buckets, another way to make them, a copy that is written while training goes on."""
    told: dict[str, Any] = {
        "static": gone_on(rank, "topk", {"strategy": "two_phase"}, static_graph=True),
        "changed": gone_on(rank, "twobit", {"threshold": 1e-3, "strategy": "two_phase"}, changed=True),
    }
    model, state = wrapped("topk", {"ratio": 0.1, "strategy": "two_phase"})
    train(model, range(3), rank)
    before, saved = kept(state), through_a_file(state.state_dict())
    writing = dcp.async_save({"model": model, "gradwire": state}, checkpoint_id=folder)
    train(model, range(3, 6), rank)
    writing.result()
    dist.barrier()
    read = gradwire.read_checkpoint(folder)
    mine = {"ranks": {str(rank): read["ranks"][str(rank)]}}
    told["async"] = same(before, kept(Shown(mine))) and not same(before, kept(state))
    dcp.save({"app": {"step": 6, "gradwire": state.state_dict()}}, checkpoint_id=f"{folder}-nested")
    nested = gradwire.read_checkpoint(f"{folder}-nested", "app.gradwire")
    told["nested"] = same(kept(state), kept(Shown({"ranks": {str(rank): nested["ranks"][str(rank)]}})))
    large, fresh = wrapped("topk", {"ratio": 0.1, "strategy": "two_phase"}, bucket_cap_mb=25)
    fresh.load_state_dict(saved)
    told["resaved"] = fresh.state_dict()["buckets"] == saved["buckets"]
    train(large, range(3, 8), rank)
    told["large"] = len(json.loads(fresh.state_dict()["buckets"]))
    told["digest"] = digest(large)
    return told


class Shown:
    """A state that is only looked at."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = {"ranks": {rank: {"states": {}, **of} for rank, of in state["ranks"].items()}}

    def state_dict(self) -> dict[str, Any]:
        return self.state


def fails(rank: int) -> dict[str, str]:
    """An error in the step that is exchanged in the saved buckets reaches backward on the ranks that are left."""
    model, state = wrapped("topk", {"timeout": 4.0})
    train(model, range(3), rank)
    saved = state.state_dict()
    again, fresh = wrapped("topk", {"timeout": 4.0})
    fresh.load_state_dict(saved)
    if rank == 1:
        return {"": ""}
    x, y = batch(3, rank)
    return answers({"": lambda: nn.functional.cross_entropy(again(x), y).backward()})


def units(rank: int) -> dict[str, Any]:
    """A state of a run without a scaler for one with a scaler: its unit must be said."""
    model, state = wrapped("topk", {"ratio": 0.1})
    train(model, range(2), rank)
    saved, none = state.state_dict(), wrapped("qsgd", {})[1].state_dict()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    model, state = wrapped("topk", {"ratio": 0.1, "scaler": scaler})
    told: dict[str, Any] = answers({"unknown": lambda: state.load_state_dict(saved)})
    saved["units"]["scale"] = 1.0
    state.load_state_dict(saved)
    before = state.metrics()["residual_norm"]
    (0.0 * model(batch(0, rank)[0])).sum().backward()
    told["grown"] = before, state.metrics()["residual_norm"]
    wrapped("qsgd", {"scaler": scaler})[1].load_state_dict(none)
    return told
