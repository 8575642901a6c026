"""Seconds that encoding and decoding take, bucket by bucket: the exchange itself, on a channel that records.

Invariants:
    * ``Exchange.run`` is timed on gradients of the real shapes, with plan, memories and status words, minus the time in
      the channel.
    * A receiver finds the bytes that this worker sent, so decoders do the work of W payloads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gradwire.auto.probe import dry_exchange
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.exchange import Exchange
from gradwire.errors import ConfigError
from gradwire.transport.collective_round import Round
from gradwire.transport.recording import RecordingChannel
from gradwire_lab.advise.profile import BucketProfile
from gradwire_lab.bench.statistics import slowest_samples

__all__ = ["SAMPLE", "Codec", "CodecTimes", "measure", "sample", "slowest"]

WARM_UP, REPEATS = 2, 5
_SPREAD = 1e-2

SAMPLE = 1 << 20
"""Elements of a sample: enough that the work for each of them outweighs the work for each call."""


@dataclass(frozen=True)
class CodecTimes:
    """Times of one bucket on one worker, a number for each repeat; bytes are those of the last repeat.

    Args:
        encode: seconds.
        decode: seconds: all of the exchange that is neither encoding nor a message.
        rounds: rounds that the exchange asked of the channel.
    """

    encode: list[float]
    decode: list[float]
    rounds: tuple[Round, ...]

    @classmethod
    def joined(cls, repeats: Sequence[CodecTimes]) -> CodecTimes:
        """Join several measurements of one bucket into one."""
        encode, decode = ([getattr(each, name)[0] for each in repeats] for name in ("encode", "decode"))
        return cls(encode, decode, repeats[-1].rounds)


@dataclass(frozen=True)
class Codec:
    """Seconds that a method takes for each bucket, in the order of the profile, and the bytes of each if they are
    measured.

    Args:
        encode: seconds for each bucket.
        decode: seconds for each bucket.
        message: bytes that each peer got of a bucket, which may depend on the values; None: nobody knows.
        timed: elements that were timed, where the seconds are scaled from these; 0: all of them were.
    """

    encode: tuple[float, ...]
    decode: tuple[float, ...]
    message: tuple[float | None, ...]
    timed: int = 0

    @property
    def seconds(self) -> float:
        """The seconds of a step."""
        return sum(self.encode) + sum(self.decode)

    @classmethod
    def of_workers(
        cls, found: Sequence[Sequence[CodecTimes]], workers: int, typical: Callable[[Iterable[float]], float] = min
    ) -> Codec:
        """Make a codec from the measurements of workers that ran at the same time.

        Args:
            found: measurements by worker, one of each bucket.
            workers: world size that the exchange was told.
            typical: function that picks the typical one of the repeats, in each of which the slowest worker counts. The
                least is what the codec takes where nothing else uses the processor: on a busy machine the others say
                how busy it is.
        """
        buckets = list(zip(*found, strict=True))
        encode = tuple(slowest([each.encode for each in bucket], typical) for bucket in buckets)
        decode = tuple(slowest([each.decode for each in bucket], typical) for bucket in buckets)
        return cls(encode, decode, tuple(message_of(bucket[0].rounds, workers) for bucket in buckets))

    def scaled(self, sampled: BucketProfile, buckets: Sequence[BucketProfile]) -> Codec:
        """Scale the codec to other buckets, by their numbers of elements.

        Args:
            sampled: the one bucket of which this is.
            buckets: buckets of the model. Their messages are not known: an exact layout is better than a scaled one.
        """
        shares = [bucket.numel / sampled.numel for bucket in buckets]
        encode, decode = (tuple(share * each[0] for share in shares) for each in (self.encode, self.decode))
        return Codec(encode, decode, (None,) * len(shares), sampled.numel)

    @classmethod
    def at_rate(cls, buckets: Sequence[BucketProfile], encode: float, decode: float) -> Codec:
        """Make a codec from given numbers.

        Args:
            buckets: buckets of the model.
            encode: seconds an element.
            decode: seconds an element.
        """
        sizes = [bucket.numel for bucket in buckets]
        return cls(tuple(encode * n for n in sizes), tuple(decode * n for n in sizes), (None,) * len(sizes))

    def towards(self, far: Codec, share: float, *, once: bool = False) -> Codec:
        """Interpolate the codec on the line through this and ``far``: 0 is this, 1 is ``far``; the result is never
        below this one.

        Args:
            far: the same of more workers.
            share: share of the way from this codec to ``far``, >= 0.
            once: encoding is the same work for any number of workers and stays as it is: a line would only multiply the
                noise between two measurements of it.
        """

        def line(near: Sequence[float], there: Sequence[float]) -> tuple[float, ...]:
            return tuple(a + share * max(0.0, b - a) for a, b in zip(near, there, strict=True))

        encode = self.encode if once else line(self.encode, far.encode)
        return replace(self, encode=encode, decode=line(self.decode, far.decode))


def message_of(rounds: Sequence[Round], workers: int) -> float | None:
    """The bytes to each peer in the last exchange; None if there was none."""
    exchanges = [each for each in rounds if each.kind == "exchange"]
    return exchanges[-1].sent / (workers - 1) if exchanges else None


def slowest(samples: Sequence[Sequence[float]], typical: Callable[[Iterable[float]], float] = median) -> float:
    """The typical time of the slowest worker: the maximum of each repeat, reduced by ``typical``."""
    return float(typical(slowest_samples(samples)))


def sample(buckets: Sequence[BucketProfile], numel: int = SAMPLE) -> BucketProfile:
    """A bucket that represents all others: the smallest that is large enough, with a part of the rows of its tensors.

    Args:
        buckets: buckets of a model.
        numel: elements that the sample has about, where the model has as many.

    >>> sample([BucketProfile((("a", (4096, 1024)), ("b", (64,))), 0.0)], 1 << 20).params
    (('a', (1024, 1024)), ('b', (16,)))
    """
    large = [bucket for bucket in buckets if bucket.numel >= numel]
    chosen = min(large, key=lambda each: each.numel) if large else max(buckets, key=lambda each: each.numel)
    share = min(1.0, numel / chosen.numel)
    params = [
        (name, (max(1, round(share * shape[0])), *shape[1:]) if len(shape) else shape) for name, shape in chosen.params
    ]
    return replace(chosen, params=tuple(params))


def measure(
    buckets: Sequence[BucketProfile],
    compressor: Compressor,
    workers: int,
    *,
    options: Mapping[str, Any] | None = None,
    meet: Callable[[float], float] = float,
    clock: Callable[[], float] = time.perf_counter,
    repeats: int = REPEATS,
    budget: float = math.inf,
) -> list[CodecTimes] | str:
    """Time a method on one worker.

    Args:
        buckets: buckets with the shapes to exchange.
        compressor: compressor with its parameters.
        workers: world size that the exchange is told.
        options: further arguments of ``Exchange``.
        meet: called before each bucket with the seconds so far, so that workers which share a machine compute at the
            same time; returns those of the slowest.
        clock: seconds of this thread; see ``machine.crowded``.
        repeats: number of repeats that count, after others that warm up.
        budget: seconds; when they are over no further step is begun, nor bucket of the first one.

    Returns:
        A measurement for each bucket; or why there is none.
    """
    try:
        capabilities.check_world(compressor, workers)
    except ConfigError as error:
        # No error of the caller: of the many methods that are tried some cannot work in such a world.
        return str(error)
    exchange = dry_exchange(compressor, workers, **(options or {}))
    strategy = exchange.methods.strategy_for(compressor)
    if not strategy.peers_alike:
        told = f"what peers send under strategy {strategy.name!r} is their own"
        return f"{told}, so it cannot be measured here: give --codec"
    exchange.counters.clock = clock
    noise = torch.Generator().manual_seed(0)
    given = [
        torch.randn(bucket.numel, generator=noise, dtype=torch.float32, device="cpu").mul_(_SPREAD)
        for bucket in buckets
    ]
    flats = [torch.empty_like(each) for each in given]
    steps: list[list[CodecTimes]] = []
    begun = time.perf_counter()
    while len(steps) < WARM_UP + repeats:
        exchange.begin_step()
        step: list[CodecTimes] = []
        for bucket, flat, gradient in zip(buckets, flats, given, strict=True):
            flat.copy_(gradient)
            spent = meet(time.perf_counter() - begun)
            if spent > budget and step and not steps:
                return f"a first try took over {budget:g} s here: give more --budget, or measure on an idle machine"
            step.append(_timed(exchange, flat, bucket))
        steps.append(step)
        if meet(time.perf_counter() - begun) > budget:
            break
    counted = steps[WARM_UP:] or steps[-1:]
    return [CodecTimes.joined(column) for column in zip(*counted, strict=True)]


def _timed(exchange: Exchange, flat: Tensor, bucket: BucketProfile) -> CodecTimes:
    channel, metrics = exchange.channel, exchange.counters
    assert isinstance(channel, RecordingChannel)
    first, inside, encoded = len(channel.rounds), channel.inside, metrics.seconds["encode"]
    start = metrics.clock()
    exchange.run(flat, bucket.params)
    total = metrics.clock() - start - (channel.inside - inside)
    encode = metrics.seconds["encode"] - encoded
    return CodecTimes([encode], [max(0.0, total - encode)], tuple(channel.rounds[first:]))
