"""Work of the ranks in the tests of hosts; each function is one launch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gradwire.comm.base import Strategy
from gradwire.errors import ConfigError
from gradwire.exchange.exchange import Exchange
from gradwire.exchange.policy import Policy
from gradwire.exchange.settings import build_compressor
from gradwire.group import hosts
from gradwire.integrations.ddp import compress_ddp
from tests.comm.jobs import SHAPES, gradient, kept, numel, owned

BUCKETS = [[SHAPES], [SHAPES[2:], SHAPES[:2]], [SHAPES[:3], SHAPES[3:]]]
"""Ways in which the parameters lie in buckets."""


def exchange_of(method: str, strategy: Strategy | str, min_numel: int = 100) -> Exchange:
    policy = Policy(min_numel=min_numel)
    return Exchange(build_compressor(method, {}), strategy=strategy, group=dist.group.WORLD, policy=policy)


def step_of(exchange: Exchange, flat: Tensor, buckets: list[Any]) -> Tensor:
    """Exchange a gradient, laid out as ``SHAPES``, in these buckets; its mean."""
    places, lo = {}, 0
    for name, shape in SHAPES:
        places[name] = slice(lo, lo + torch.Size(shape).numel())
        lo = places[name].stop
    exchange.begin_step()
    for params in buckets:
        bucket = torch.cat([flat[places[name]] for name, _ in params])
        exchange.run(bucket, params)
        sizes = [torch.Size(shape).numel() for _, shape in params]
        for (name, _), part in zip(params, torch.split(bucket, sizes), strict=True):
            flat[places[name]] = part
    return flat


def changing(rank: int, method: str, stages: list[tuple[Strategy | str, list[Any]]], each: int) -> dict[str, Any]:
    """``each`` steps with every strategy and its buckets; from one strategy to the next goes the state."""
    exchange, before, outputs = exchange_of(method, stages[0][0]), stages[0][0], []
    for strategy, buckets in stages:
        if strategy != before:
            state = exchange.state_dict()
            exchange, before = exchange_of(method, strategy), strategy
            exchange.load_state_dict(state)
        for _ in range(each):
            outputs.append(step_of(exchange, gradient(len(outputs), rank, numel(SHAPES)), buckets))
    return {"outputs": outputs, "residuals": [kept(exchange)], "owned": owned(exchange)}


def saved(rank: int, method: str, strategy: Strategy, steps: int) -> dict[str, Any]:
    exchange = exchange_of(method, strategy)
    for step in range(steps):
        step_of(exchange, gradient(step, rank, numel(SHAPES)), BUCKETS[0])
    return {"state": exchange.state_dict(), "residuals": [kept(exchange)], "owned": owned(exchange)}


def loaded(rank: int, method: str, strategy: Strategy, state: dict[str, Any]) -> dict[str, Any]:
    """A step without a gradient, after a state of another number of ranks."""
    exchange = exchange_of(method, strategy)
    exchange.load_state_dict(state, on_resize="reshard")
    output = step_of(exchange, torch.zeros(numel(SHAPES)), BUCKETS[0])
    return {"outputs": [output], "residuals": [kept(exchange)], "owned": owned(exchange)}


def means(
    rank: int, method: str, strategies: list[Strategy | str], size: int, min_numel: int = 100
) -> list[dict[str, Any]]:
    """Three steps by each strategy; a rank's gradient is the mean of those of ``size`` ranks."""
    found = []
    for strategy in strategies:
        exchange, outputs = exchange_of(method, strategy, min_numel), []
        for step in range(3):
            parts = [gradient(step, rank * size + i, numel(SHAPES)) for i in range(size)]
            outputs.append(step_of(exchange, torch.stack(parts).mean(0), BUCKETS[0]))
        found.append({"outputs": outputs, "residuals": kept(exchange), "metrics": exchange.metrics()})
    return found


def set_up(rank: int, strategy: str) -> str:
    """The error of ``compress_ddp`` with this strategy, if there is one."""
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    try:
        compress_ddp(model, "qsgd", strategy=strategy)
    except ConfigError as error:
        return str(error)
    return ""


def pretending(rank: int, names: list[str], method: str) -> tuple[str, list[Tensor], dict[str, Any]]:
    """Three steps where each rank says another name of its host; the error, the means and the metrics."""
    hosts.own_host = lambda: names[rank].encode().ljust(16)
    exchange = exchange_of(method, "hierarchical", 0)
    try:
        outputs = [step_of(exchange, gradient(step, rank, numel(SHAPES)), BUCKETS[0]) for step in range(3)]
    except ConfigError as error:
        return str(error), [], exchange.metrics()
    return "", outputs, exchange.metrics()
