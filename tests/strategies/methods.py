"""Small methods that use what the built-in ones of the first hour do not: variable size, votes, other reductions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.compressors.base import Compressor, MultiRound
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire.errors import require
from gradwire.memory.base import Memory
from gradwire.vocabulary import Field, Layout
from tests.strategies.jobs import SHAPES, gradient, numel


@dataclass(frozen=True)
class NonZero(Compressor):
    """The elements above ``least`` in magnitude, with their indices."""

    least: float = 1.0
    name = "nonzero"
    reference = "none"
    fixed_size = False

    def layout(self, shape):
        n = math.prod(shape)
        return Layout((Field("used", torch.int32, 1), Field("stream", torch.uint8, 8 * n)))

    def encode(self, x, payload, state, key):
        used, stream = payload
        flat = x.reshape(-1)
        where = (flat.abs() > self.least).nonzero().view(-1)
        parts = [where.to(torch.int32).view(torch.uint8), flat[where].contiguous().view(torch.uint8)]
        coded = torch.cat(parts)
        used.fill_(coded.numel())
        stream.zero_()[: coded.numel()].copy_(coded)

    def add_decoded(self, payload, out, scale=1.0):
        used, stream = payload
        k = int(used) // 8
        where = stream[: 4 * k].clone().view(torch.int32).long()
        out.view(-1).index_add_(0, where, scale * stream[4 * k : 8 * k].clone().view(torch.float32))


@dataclass(frozen=True)
class Vote(Compressor):
    """One int8 for each sign; the optimizer gets the sign of the sum."""

    name = "vote"
    reference = "none"

    def layout(self, shape):
        return Layout((Field("signs", torch.int8, math.prod(shape)),))

    def encode(self, x, payload, state, key):
        payload[0].copy_(x.view(-1).sign())

    def add_decoded(self, payload, out, scale=1.0):
        out.view(-1).add_(payload[0].float(), alpha=scale)

    def settle(self, mean):
        mean.sign_()


@dataclass(frozen=True)
class SharedScale(MultiRound):
    """Integers of one common scale, summed as integers."""

    name = "shared_scale"
    reference = "none"
    rounds_needed = 3
    reductions = ("max", "sum", "sum")

    def check_world(self, world):
        require(1000 * world < 2**31, "world", "at most 2147483 workers, whose codes an int32 can sum", world)

    def pays_for(self, shape):
        return True

    def layout(self, shape):
        n = math.prod(shape)
        fields = Field("scale", torch.float32, 1), Field("ranks", torch.int32, 1), Field("codes", torch.int32, n)
        return Layout(fields)

    def rounds(self, xs, payloads, states, keys):
        for x, payload in zip(xs, payloads, strict=True):
            payload[0].copy_(x.abs().amax())
        yield 0
        for x, payload in zip(xs, payloads, strict=True):
            payload[1].fill_(1)
            payload[2].copy_((x.view(-1) / payload[0] * 1000).round())
        yield 1
        yield None

    def add_decoded(self, payload, out, scale=1.0):
        out.view(-1).add_(payload[2] * (payload[0] / 1000 / payload[1]), alpha=scale)


@dataclass(frozen=True)
class Alternating(MultiRound):
    """The first half in even steps, the second half in odd ones."""

    name = "alternating"
    reference = "none"

    def pays_for(self, shape):
        return True

    def layout(self, shape):
        n = math.prod(shape)
        return Layout((Field("even", torch.float32, n - n // 2), Field("odd", torch.float32, n // 2)))

    def rounds(self, xs, payloads, states, keys):
        which = keys[0].step % 2
        for x, payload in zip(xs, payloads, strict=True):
            payload[1 - which].zero_()
            half = payload[0].numel()
            payload[which].copy_(x.view(-1)[half:] if which else x.view(-1)[:half])
        yield which

    def add_decoded(self, payload, out, scale=1.0):
        out.view(-1).add_(torch.cat(payload), alpha=scale)


@dataclass(frozen=True)
class Tracks(Memory):
    """Sends what the gradient lacks against an estimate, and hands out the mean of the estimates."""

    name = "tracks"
    buffers = ("local", "mean")

    def encode(self, compressor, grad, kept, payload, state, key, status, scale=1.0):
        local = kept["local"]
        grad.sub_(local)
        compressor.encode(grad, payload, state, key)
        status.bitwise_or_((~grad.isfinite().all()).int())
        grad.copy_(local)
        compressor.add_decoded(payload, local)

    def rollback(self, grad: Tensor, kept: Mapping[str, Tensor]) -> None:
        kept["local"].copy_(grad)

    def compensate(self, grad, kept):
        grad.sub_(kept["local"])

    def update(self, unsent, kept, bad):
        raise NotImplementedError

    def begin(self, out, kept):
        out.copy_(kept["mean"])

    def finish(self, out, kept, bad):
        torch.where(bad, kept["mean"], out, out=kept["mean"])


def run_method(
    rank: int,
    compressor: Compressor,
    memory: str | Memory | None,
    strategy: str | None,
    steps: int,
    poisoned: int = -1,
) -> dict[str, Any]:
    """Exchange the gradients of ``steps`` steps; in step ``poisoned`` rank 1 has an infinity."""
    exchange = Exchange(
        compressor, memory=memory, strategy=strategy, group=dist.group.WORLD, policy=Policy(min_numel=64), seed=3
    )
    outputs, kept = [], []
    for step in range(steps):
        flat = gradient(step, rank, numel(SHAPES))
        if step == poisoned and rank == 1:
            flat[-5] = math.inf
        exchange.begin_step()
        exchange.run(flat, SHAPES)
        outputs.append(flat)
        kept.append(
            {
                f"{buffer}/{name}": tensor.clone()
                for buffer, of in exchange.residuals.worker.items()
                for name, tensor in of.items()
            }
        )
    return {"outputs": outputs, "kept": kept, "metrics": exchange.metrics()}


@dataclass(frozen=True)
class Wishes(Compressor):
    """Sends nothing but zeros; wishes for the largest element of its gradient."""

    name = "wishes"
    reference = "none"
    advice = 1

    def layout(self, shape):
        return Layout((Field("agreed", torch.float32, 1),))

    def init_state(self, shape, key, device=None):
        return {"advice": torch.zeros(1, device=device), "agreed": torch.full((1,), math.nan, device=device)}

    def encode(self, x, payload, state, key):
        state["advice"].copy_(x.abs().amax().nan_to_num(0.0, 0.0))
        payload[0].copy_(state["agreed"])

    def add_decoded(self, payload, out, scale=1.0):
        out.add_(payload[0], alpha=scale)
