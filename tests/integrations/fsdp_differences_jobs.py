"""Work of the ranks in the tests of differences of weights; each function is one launch."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import gradwire
from gradwire.frontends.fsdp import FSDPState, compress_fsdp
from tests.integrations.fsdp_rank_grid_jobs import backward, build, place, train
from tests.integrations.fsdp_weights_jobs import gathered, loss_of, masters
from tests.integrations.jobs import answers

CODE = "ef21:inner=loco"
LAYOUTS = ("flat", "native", "replicate=", "data x tensor")
STILL = 6
"""Gathers of weights that nothing changes."""

WIDE = 256


def errors(used: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [float((one.float() - other).norm() / other.norm()) for one, other in zip(used, exact, strict=True)]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def one(layout: str, code: str | None = CODE, dtype: torch.dtype | None = None, **options: Any) -> dict[str, Any]:
    """The weights that are computed with at first, after a step, and while nothing changes; and the result of
    training."""
    model, outer = build(layout, mp_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32))
    state = compress_fsdp(model, "none", weights=code, min_numel=64, replicate=outer, **options)
    first = errors(gathered(model), masters(model))
    trained = train(model, layout, range(3))
    before = masters(model)
    still = [gathered(model) for _ in range(STILL)]
    told = {
        "first": first,
        "trained": trained,
        "masters": same(before, masters(model)),
        "errors": [errors(used, before) for used in still],
        "used": still[0],
        "dtype": still[0][0].dtype,
        "loss": float(sum(loss_of(trained, seed) for seed in range(4))),
        "estimate_bytes": state.metrics().get("weights_estimate_bytes"),
    }
    state.close()
    return {**told, "closed": same(masters(model), gathered(model)), "left": state.estimates()}


class Watched(nn.Module):
    """A layer that notes the weight with which it computes in either pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layer = nn.Linear(WIDE, WIDE, bias=False)
        self.seen: dict[str, Tensor] = {}

    def note(self, when: str) -> None:
        self.seen[when] = self.layer.weight.detach().clone()

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        self.note("forward")
        out.register_hook(lambda _: self.note("backward"))
        # FSDP gathers for the backward pass at what the module returns, which comes before.
        return out * 2.0


def watched(**options: Any) -> tuple[Watched, FSDPState]:
    model = Watched()
    fully_shard(model, mesh=place("flat")[0], **options)
    return model, compress_fsdp(model, "none", weights=CODE)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    generator = torch.Generator().manual_seed(10 * number + dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(16, WIDE, generator=generator)).square().mean().backward()
    optimizer.step()


def passes(reshards: bool | int) -> dict[str, Any]:
    """The weights of both passes, and the bytes of the first step and of the second."""
    model, state = watched(reshard_after_forward=reshards)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    told: dict[str, Any] = {"same": [], "bytes": [], "dense": []}
    before = {"weights_bytes_sent": 0, "weights_dense_bytes": 0}
    for number in range(3):
        step(model, optimizer, number)
        told["same"].append(torch.equal(model.seen["forward"], model.seen["backward"]))
        now = state.metrics()
        told["bytes"].append(now["weights_bytes_sent"] - before["weights_bytes_sent"])
        told["dense"].append(now["weights_dense_bytes"] - before["weights_dense_bytes"])
        before = now
    return {**told, "estimate_bytes": before["weights_estimate_bytes"]}


def spoiled() -> dict[str, Any]:
    """A weight of one rank is NaN for one gather."""
    model, _ = watched()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step(model, optimizer, 0)
    shard: Tensor = model.layer.weight.to_local()  # type: ignore[operator]
    kept = shard[0, 0].clone()
    with torch.no_grad():
        before = gathered(model)[0]
        if dist.get_rank() == 1:
            shard[0, 0] = float("nan")
        bad = gathered(model)[0]
        shard[0, 0] = kept
        after, exact = gathered(model)[0], masters(model)[0]
    rows = WIDE // dist.get_world_size()
    return {
        "bad": [bool(part.isnan().all()) for part in bad.split(rows)],
        "none": [bool(part.isnan().any()) for part in bad.split(rows)],
        "errors": [errors([each], [exact])[0] for each in (before, after)],
    }


def resumed() -> dict[str, Any]:
    """Six steps unbroken; and three, a checkpoint, and three by a new model."""
    model, state = watched()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number in range(3):
        step(model, optimizer, number)
    params = [param.detach().clone() for param in model.parameters()]
    saved = params, copy.deepcopy(optimizer.state_dict()), copy.deepcopy(state.state_dict())
    own = saved[2]["ranks"][str(dist.get_rank())]["weights"]
    for number in range(3, 6):
        step(model, optimizer, number)
    whole = masters(model), model.seen["forward"]
    state.close()
    fresh, state = watched()
    optimizer = torch.optim.AdamW(fresh.parameters(), lr=1e-2)
    with torch.no_grad():
        for param, value in zip(fresh.parameters(), saved[0], strict=True):
            param.copy_(value)
    optimizer.load_state_dict(saved[1])
    state.load_state_dict(saved[2])
    again = state.state_dict()["ranks"][str(dist.get_rank())].get("weights", {})
    sent = []
    for number in range(3, 6):
        step(fresh, optimizer, number)
        sent.append(state.metrics()["weights_bytes_sent"])
    state.close()
    return {
        "same": same(whole[0], masters(fresh)) and torch.equal(whole[1], fresh.seen["forward"]),
        "saved": {name: part.numel() for name, part in own.items()},
        "again": own.keys() == again.keys() and all(torch.equal(part, again[name]) for name, part in own.items()),
        "first": sent[0],
        "second": sent[1] - sent[0],
    }


def differences(rank: int) -> dict[Any, Any]:
    gc.freeze()
    told: dict[Any, Any] = {layout: one(layout) for layout in LAYOUTS}
    told |= {("exact", layout): one(layout, None) for layout in LAYOUTS}
    told["bfloat16"] = one("flat", CODE, torch.bfloat16)
    told["exclude"] = one("flat", CODE, exclude=["up.*"])
    told["passes"] = {reshards: passes(reshards) for reshards in (True, False)}
    told["spoiled"], told["resumed"] = spoiled(), resumed()
    model, _ = build("flat")
    told["refused"] = answers(
        {
            name: lambda code=code: compress_fsdp(model, "none", weights=code)
            for name, code in {
                "plain": "loco",
                "random": "ef21:inner=eden",
                "rounds": "ef21:inner=powersgd",
                "coarse": "ef21:inner=topk",
            }.items()
        }
    )
    return told


def leave(rank: int, folder: str) -> None:
    """Save what each of several ranks would."""
    model, _ = build("flat")
    state = compress_fsdp(model, "topk", ratio=0.1, weights=CODE, min_numel=64)
    train(model, "flat", range(3))
    torch.save(state.state_dict(), Path(folder) / f"{rank}.pt")
    dist.barrier()


def take(rank: int, folder: str, before: int) -> dict[str, Any]:
    """Load on another number of ranks, between two steps of another model."""
    states = [torch.load(Path(folder) / f"{old}.pt", weights_only=True) for old in range(before)]
    model, _ = build("flat")
    state = compress_fsdp(model, "topk", ratio=0.1, weights=CODE, min_numel=64)
    train(model, "flat", range(2))
    late = errors(gathered(model), masters(model))
    state.load_state_dict(gradwire.merge_states(states), on_resize="reshard")
    told = {"late": late, "first": errors(gathered(model), masters(model))}
    backward(model, "flat")
    return told
