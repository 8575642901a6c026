"""Probes of a method on a bucket of real gradients: seconds of its code, and the error that it adds.

Invariants:
    * Both are measured on the bucket itself, on the thread that exchanges it, in a step that stays uncompressed. Of
      large tensors the first rows are taken.
    * The seconds are those of a whole exchange over a channel that carries nothing, so plans, status words and the
      decoding of all ranks' messages are in them. The least of several runs counts, because other load of the processor
      only makes them longer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.auto.choices import Choice
from gradwire.auto.step_record import between, moment
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.none import Identity
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import Named
from gradwire.engine.policy import Policy
from gradwire.metrics import Metrics
from gradwire.transport.recording import RecordingChannel

__all__ = ["Probed", "compressible", "dry_exchange", "probe"]

TIMED, CODED = 1 << 20, 1 << 16
"""Elements of a bucket with which a code is timed, and with which its error is measured, at most."""

RUNS = 3
"""Runs of which the fastest counts; the first one makes its plans."""


@dataclass(frozen=True)
class Probed:
    """The measurements of a choice on a bucket.

    Args:
        seconds: seconds of encoding and decoding the whole bucket.
        omega: the squared norm of what the code adds to a rank's own gradient, over that of the gradient.
    """

    seconds: float
    omega: float


def compressible(params: Sequence[Named], policy: Policy, choice: Choice) -> list[str]:
    """The parameters of a bucket that a choice would compress."""
    main = choice.compressor
    return [name for name, shape in params if policy.choose(name, shape, main) is main]


def dry_exchange(
    compressor: Compressor, workers: int, rank: int = 0, policy: Policy | None = None, **options: Any
) -> Exchange:
    """Make an exchange that acts as one of ``workers``.

    Args:
        compressor: compressor with its parameters.
        workers: pretended number of workers.
        rank: pretended rank, 0 to ``workers`` - 1.
        policy: per-parameter choices.
        options: further arguments of ``Exchange``.
    """
    return Exchange(compressor, policy=policy, channel=RecordingChannel(workers, Metrics(), rank), **options)


def probe(
    exchange: Exchange,
    choice: Choice,
    code: Callable[[str], Compressor],
    flat: Tensor,
    params: Sequence[Named],
    world: int,
    size: int = 1,
) -> Probed | None:
    """Try a choice on a bucket; the gradient stays unchanged.

    Args:
        exchange: exchange that the bucket belongs to.
        choice: choice to try.
        code: the compressor that each parameter would have, by its name.
        flat: gradient of this rank, before it is exchanged.
        params: names and shapes of the bucket's parameters.
        world: ranks whose messages are decoded; 1 where each owner decodes only what is its own, which of all ranks
            is as much as one message.
        size: ranks of a host.

    Returns:
        None where the choice would compress nothing of the bucket.
    """
    names = set(compressible(params, exchange.methods.policy, choice))
    if not names or choice.dense:
        return None
    policy = dataclasses.replace(exchange.methods.policy, min_numel=0, start_after=0, schedule={})
    shapes, sample = _rows(flat, params, names, TIMED)
    whole = sum(math.prod(shape) for name, shape in params if name in names)
    rank = exchange.channel.rank if world > 1 else 0
    dry = dry_exchange(Identity(), world, rank, policy, seed=exchange.seed, device=exchange.device)
    dry.counters.clock = exchange.counters.clock
    strategy = choice.strategy.with_hosts_of(size)
    dry.assign({name: (code(name), strategy) for name in names})
    seconds = whole / sample.numel() * min(_timed(dry, sample, shapes) for _ in range(RUNS))
    few, small = _rows(flat, params, names, CODED)
    small = _as_if_used(small, few)
    return Probed(seconds, _omega(exchange, {name: (code(name), choice) for name in names}, policy, small, few))


def _rows(flat: Tensor, params: Sequence[Named], names: set[str], numel: int) -> tuple[list[Named], Tensor]:
    """The first rows of some parameters, about so many elements in all, and their shapes."""
    total = sum(math.prod(shape) for name, shape in params if name in names)
    share, lo = min(1.0, numel / total), 0
    shapes, parts = list[Named](), []
    for name, shape in params:
        if name in names:
            rows = max(1, round(share * shape[0])) if shape else 1
            cut = (rows, *shape[1:]) if shape else shape
            shapes.append((name, cut))
            parts.append(flat[lo : lo + math.prod(cut)])
        lo += math.prod(shape)
    return shapes, torch.cat(parts)


def _as_if_used(sample: Tensor, shapes: Sequence[Named]) -> Tensor:
    """Give parameters whose gradients are zero in this step normal ones, of the mean size of the others.

    A branch that a step does not use, such as an expert or one of several heads, would count as coded without error,
    and a method that is too coarse for the steps that use it would be chosen.
    """
    parts = torch.split(sample, [math.prod(shape) for _, shape in shapes])
    used = torch.stack([part.any() for part in parts]).tolist()
    if all(used):
        return sample
    there = [part for part, each in zip(parts, used, strict=True) if each]
    size = torch.cat(there).square().mean().sqrt() if there else torch.ones((), device=sample.device)
    # The same numbers on all ranks, on a generator of its own: the training's stays as it is.
    drawn = torch.randn(sample.shape, generator=torch.Generator().manual_seed(0), device="cpu").to(sample.device)
    kept = [
        part if each else size * noise
        for part, each, noise in zip(parts, used, torch.split(drawn, [len(part) for part in parts]), strict=True)
    ]
    return torch.cat(kept)


def _timed(dry: Exchange, sample: Tensor, shapes: Sequence[Named]) -> float:
    channel, flat = dry.channel, sample.clone()
    assert isinstance(channel, RecordingChannel)
    dry.begin_step()
    inside, start = channel.inside, moment(dry.device)
    dry.run(flat, shapes)
    return between(start, moment(dry.device)) - (channel.inside - inside)


def _omega(
    exchange: Exchange,
    codes: dict[str, tuple[Compressor, Choice]],
    policy: Policy,
    sample: Tensor,
    shapes: Sequence[Named],
) -> float:
    """The relative error of one message, decoded by its sender: in a group of one it is the error of the mean."""
    alone = Exchange(Identity(), policy=policy, seed=exchange.seed, device=exchange.device)
    # A single rank is a single host, on which nothing would be encoded.
    alone.assign({name: (code, choice.strategy.carrier(code, 1)) for name, (code, choice) in codes.items()})
    arrived = sample.clone()
    alone.begin_step()
    alone.run(arrived, shapes)
    norm = float(sample.square().sum(dtype=torch.float64))
    return float((arrived - sample).square().sum(dtype=torch.float64)) / norm if norm else 0.0
