"""Traffic of a bucket's exchange, round by round, from configuration and shapes alone.

Each strategy says what it sends (``Strategy.rounds``). What is not compressed goes around a ring beside it, 4 bytes for
each element and for each agreed number; or in the messages themselves, where every worker gets them whole.
A test runs every method on a channel that carries nothing and compares the messages that the sessions really hand over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.dense import is_carried
from gradwire.engine.part import Unit
from gradwire.engine.plan import Named, default_strategy, grouped
from gradwire.engine.policy import Policy
from gradwire.engine.strategies.base import Strategy
from gradwire.memory.base import Memory, default_memory
from gradwire.transport.collective_round import Round, ring
from gradwire.vocabulary import align

__all__ = ["PredictedTraffic", "dense_traffic", "shared", "traffic"]


@dataclass(frozen=True)
class DividedBucket:
    """A bucket as an exchange divides it.

    Args:
        units: units, each of which is compressed at once.
        dense: elements that travel uncompressed, numbers that workers agree on among them.
        numel: elements of the bucket.
        strategy: strategy that carries the units.
        used: bytes of the message where they depend on the values; None: what the compressor declares.
    """

    units: Sequence[Unit]
    dense: int
    numel: int
    strategy: Strategy
    used: float | None = None


@dataclass(frozen=True)
class PredictedTraffic:
    """The rounds of one bucket; those of its uncompressed part run beside the others."""

    dense: tuple[Round, ...]
    rounds: tuple[Round, ...]

    @property
    def sent(self) -> float:
        """The bytes of the rank that sends most."""
        return sum(each.sent for each in (*self.dense, *self.rounds))


def shared(
    params: Sequence[Named],
    compressor: Compressor,
    workers: int,
    policy: Policy | None = None,
    strategy: Strategy | str | None = None,
    used: float | None = None,
    main: Callable[[str], Compressor] | None = None,
) -> DividedBucket:
    """Divide a bucket as ``Exchange`` does.

    Args:
        params: names and shapes, in the order of the bucket.
        compressor: compressor of all parameters for which it pays.
        workers: world size on which the default strategy depends.
        policy: per-parameter choices.
        strategy: strategy, or its registered name, with parameters or without; None: the default one.
        used: see ``DividedBucket``.
        main: the compressor of each parameter, by its name; None: ``compressor`` of all.

    Raises:
        ConfigError: the strategy cannot carry the compressor.
    """
    memory: Memory = registry.build("memory", default_memory(compressor))
    units, dense, numel = grouped(params, main or (lambda _: compressor), policy or Policy(), lambda _: memory)
    if not isinstance(strategy, Strategy):
        strategy = cast(Strategy, registry.build("strategies", strategy or default_strategy(compressor, workers)))
    strategy.check(compressor)
    wishes = sum(capabilities.advice(each.compressor) for each in units)
    return DividedBucket(units, sum(hi - lo for lo, hi in dense) + wishes, numel, strategy, used)


def traffic(bucket: DividedBucket, workers: int) -> PredictedTraffic:
    """Predict the rounds of a bucket.

    Args:
        bucket: division of the bucket, from ``shared``.
        workers: number of workers that exchange the bucket.
    """
    rounds: tuple[Round, ...] = ()
    if bucket.units and workers > 1:
        rounds = bucket.strategy.rounds(bucket.units, workers, bucket.used)
        fixed = all(unit.compressor.fixed_size for unit in bucket.units)
        if bucket.strategy.gathers and fixed and is_carried(bucket.dense, workers):
            (alone,) = rounds
            nbytes = align(int(alone.sent) + 4 * bucket.dense)
            return PredictedTraffic((), (Round(alone.kind, nbytes, nbytes),))
    return PredictedTraffic(dense_traffic(bucket.dense, workers), rounds)


def dense_traffic(numel: int, workers: int, itemsize: int = 4) -> tuple[Round, ...]:
    """Predict the rounds of an all-reduce over elements of so many bytes."""
    return (ring(itemsize * numel, workers),) if numel and workers > 1 else ()
