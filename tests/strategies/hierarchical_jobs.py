"""Work of the ranks in the tests of hosts; each function is one launch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire.engine.settings import build_compressor
from gradwire.engine.strategies.base import Strategy
from gradwire.engine.strategies.two_phase import TwoPhase
from gradwire.errors import ConfigError
from gradwire.frontends.ddp import compress_ddp
from gradwire.transport import hosts
from tests.strategies.jobs import SHAPES, gradient, kept, numel, owned

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


class Stage(NamedTuple):
    """Steps with one method in the same buckets; ``resumed``: of a new exchange that loads the state of the last."""

    method: str
    strategy: Strategy | str
    buckets: list[Any]
    steps: int
    resumed: bool = True


def changing(rank: int, cases: list[list[Stage]]) -> list[dict[str, Any]]:
    """Make the steps of all stages of each case."""
    return [changed(rank, stages) for stages in cases]


def changed(rank: int, stages: list[Stage]) -> dict[str, Any]:
    exchange, outputs = exchange_of(stages[0].method, stages[0].strategy), list[Tensor]()
    for stage in stages:
        if stage.resumed and outputs:
            state = exchange.state_dict()
            exchange = exchange_of(stage.method, stage.strategy)
            exchange.load_state_dict(state)
        for _ in range(stage.steps):
            outputs.append(step_of(exchange, gradient(len(outputs), rank, numel(SHAPES)), stage.buckets))
    return {"outputs": outputs, "residuals": [kept(exchange)], "owned": owned(exchange)}


def leaving(rank: int, first: str, buckets: list[list[Any]], steps: int) -> dict[str, Any]:
    """After a state of ``two_phase`` was loaded and ``steps`` were made, no parameter is compressed any more."""
    assigned = {name: (build_compressor(first, {}), TwoPhase()) for name, _ in SHAPES}
    before, after = exchange_of("none", "allreduce", 0), exchange_of("none", "allreduce", 0)
    for exchange in (before, after):
        exchange.assign(assigned)
    grads = [gradient(step, rank, numel(SHAPES)) for step in range(3 + steps + 4)]
    outputs = [step_of(before, grad, buckets[0]) for grad in grads[:3]]
    after.load_state_dict(before.state_dict())
    outputs += [step_of(after, grad, buckets[1]) for grad in grads[3 : 3 + steps]]
    after.assign({})
    outputs += [step_of(after, grad, buckets[1]) for grad in grads[3 + steps :]]
    return {"outputs": outputs, "residuals": [kept(after)], "owned": owned(after)}


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
