"""Ranks that exchange by ``dgc`` what is compressed, small, excluded, and in a warm-up, and what they keep of it."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.compressors.sparse.dgc import DGC
from gradwire.engine.checkpoint import merge_states
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import Named
from gradwire.engine.policy import Policy
from gradwire.frontends.ddp import exchange_used
from gradwire.memory.dgc import DGCMemory
from tests.strategies.jobs import gradient

SHAPES: list[Named] = [("a", (40, 33)), ("small", (33,)), ("left.out", (20, 20))]
PLACES = {"a": slice(0, 1320), "small": slice(1320, 1353), "left.out": slice(1353, 1753)}
N, WARM = 1753, 2


def exchange_of(**options: Any) -> Exchange:
    policy = Policy(**{"min_numel": 64, "exclude": ["left.*"], "start_after": WARM, **options.pop("policy", {})})
    return Exchange(DGC(ratio=0.1), policy=policy, group=dist.group.WORLD, **options)


def momenta(exchange: Exchange) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in exchange.residuals.worker["momentum"].items()}


def velocity(exchange: Exchange) -> Tensor:
    return exchange.residuals.worker.get("residual", {}).get("a", torch.zeros(1320)).clone()


def step_of(exchange: Exchange, flat: Tensor) -> dict[str, Any]:
    exchange.begin_step()
    exchange.run(flat, SHAPES)
    return {"out": flat, "momentum": momenta(exchange), "velocity": velocity(exchange)}


def steps_of(rank: int, options: dict[str, Any], steps: int, bad: int = -1) -> list[dict[str, Any]]:
    """In step ``bad`` the last rank has an infinity in the small parameter."""
    exchange, told = exchange_of(**options), []
    for step in range(steps):
        flat = gradient(step, rank, N)
        if step == bad and rank == dist.get_world_size() - 1:
            flat[1330] = math.inf
        told.append(step_of(exchange, flat))
    return told


def clipped(rank: int) -> list[Tensor]:
    exchange = exchange_of(memory=DGCMemory(momentum=0.5, clip=0.25))
    return [step_of(exchange, gradient(step, rank, N))["out"] for step in range(2)]


def skipped(rank: int) -> list[dict[str, Any]]:
    """Two buckets, of which the second is not finite in the third step, which the optimizer skips."""
    exchange, told = exchange_of(), []
    exchange.rollback.follow_skips(True)
    for step in range(4):
        flat = gradient(step, rank, N)
        if step == 2:
            flat[1400] = math.nan
        exchange.begin_step()
        exchange.run(flat[:1353], SHAPES[:2])
        exchange.run(flat[1353:], SHAPES[2:])
        exchange.end_step()
        told.append({"momentum": momenta(exchange), "velocity": velocity(exchange)})
    return told


def unused(rank: int) -> list[dict[str, Any]]:
    """No rank uses the parameters that travel dense in the second step."""
    exchange, told = exchange_of(), []
    for step in range(3):
        flat = gradient(step, rank, N)
        if step == 1:
            flat[1320:] = 0.0
        exchange.begin_step()
        exchange_used(exchange, flat, SHAPES)
        told.append({"out": flat, "momentum": momenta(exchange)})
    return told


def resumed(rank: int) -> bool:
    """Saved in the warm-up and after it: the next steps are those of the run that went on."""
    same = []
    for cut in (1, 3):
        exchange = exchange_of()
        for step in range(cut):
            step_of(exchange, gradient(step, rank, N))
        again = exchange_of()
        again.load_state_dict(exchange.state_dict())
        for step in range(cut, cut + 3):
            flat = gradient(step, rank, N)
            one, other = step_of(exchange, flat.clone()), step_of(again, flat)
            same += [torch.equal(one[key], other[key]) for key in ("out", "velocity")]
    return all(same)


def resharded(rank: int, states: list[dict[str, Any]]) -> dict[str, Tensor]:
    exchange = exchange_of()
    exchange.load_state_dict(merge_states(states), on_resize="reshard")
    return momenta(exchange)


def saved(rank: int) -> dict[str, Any]:
    exchange = exchange_of()
    for step in range(2):
        step_of(exchange, gradient(step, rank, N))
    return exchange.state_dict()
