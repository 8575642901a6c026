"""Traffic of a bucket's exchange, round by round, from configuration and shapes alone.

Let P be the message of a bucket (``Packing.nbytes``: status word, payloads, alignment), P_j that of shard j, k the
entries of top-k over all workers' ranges. The busiest worker of W sends and receives, in bytes:

    allreduce     2 (W-1)/W S, S the bytes of what is summed; of a method of R rounds 2 (W-1)/W S/R in each of them,
                  S what it declares for a step, the mean over steps that differ
    allgather     (W-1) P; where sizes depend on the values, 8 (W-1) before it
    broadcast     (W-1) P; where sizes depend on the values, as allgather
    two_phase     to the owners: (W-1) max P_j; from the owners: the same, by the code that is made for means
    hierarchical  of a host, not of a worker: as ``between`` with one worker for each host; what stays in a host is not
                  counted. Of a reduce-scatter: L (H-1) P_j of L ranks on each of H hosts, beside 4 bytes for each
                  element of H (L-1) parts inside
    oktopk        8 W (W-1), then 8 k (W-1)/W to the owners; 8 W (W-1), then 8 k (W-1)/W of winners
    dense         2 (W-1)/W of 4 bytes for each element that is not compressed, and for each agreed number; in the
                  message P itself where it is all of a bucket's and goes to one other worker

A test runs every method on a channel that carries nothing and compares the messages that the sessions really hand over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gradwire import registry
from gradwire.auto.link_cost import Round
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.engine.dense import is_carried
from gradwire.engine.part import Part, Piece, Unit
from gradwire.engine.plan import Named, default_strategy, grouped
from gradwire.engine.policy import Policy
from gradwire.engine.shards import cut
from gradwire.engine.strategies.hierarchical import Hierarchical, grouped_by_way
from gradwire.engine.strategies.two_phase import parts_of_means
from gradwire.errors import ConfigError, nearest
from gradwire.memory.base import Memory, default_memory
from gradwire.vocabulary import align

__all__ = [
    "DividedBucket",
    "PredictedTraffic",
    "dense_traffic",
    "ring",
    "shared",
    "traffic",
    "traffic_of_host_scatter",
    "traffic_of_hosts",
]

_STATUS = align(4)


@dataclass(frozen=True)
class DividedBucket:
    """A bucket as an exchange divides it.

    Args:
        units: units, each of which is compressed at once.
        dense: elements that travel uncompressed, numbers that workers agree on among them.
        numel: elements of the bucket.
        strategy: registered name, with parameters or without, such as "hierarchical:ranks_per_host=8".
        used: bytes of the message where they depend on the values; None: what the compressor declares.
    """

    units: Sequence[Unit]
    dense: int
    numel: int
    strategy: str
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
    strategy: str | None = None,
    used: float | None = None,
    main: Callable[[str], Compressor] | None = None,
) -> DividedBucket:
    """Divide a bucket as ``Exchange`` does.

    Args:
        params: names and shapes, in the order of the bucket.
        compressor: compressor of all parameters for which it pays.
        workers: world size on which the default strategy depends.
        policy: per-parameter choices.
        strategy: registered name, with parameters or without; None: the default one.
        used: see ``DividedBucket``.
        main: the compressor of each parameter, by its name; None: ``compressor`` of all.

    Raises:
        ConfigError: the strategy cannot carry the compressor.
    """
    memory: Memory = registry.build("memory", default_memory(compressor))
    units, dense, numel = grouped(params, main or (lambda _: compressor), policy or Policy(), lambda _: memory)
    name = strategy or default_strategy(compressor, workers)
    registry.build("strategies", name).check(compressor)
    wishes = sum(each.compressor.advice for each in units)
    return DividedBucket(units, sum(hi - lo for lo, hi in dense) + wishes, numel, name, used)


def traffic(bucket: DividedBucket, workers: int) -> PredictedTraffic:
    """Predict the rounds of a bucket.

    Args:
        bucket: division of the bucket, from ``shared``.
        workers: number of workers that exchange the bucket.

    Raises:
        ConfigError: a strategy that has no formula here.
    """
    rounds: tuple[Round, ...] = ()
    if bucket.units and workers > 1:
        formula = FORMULAS.get(registry.named_of(bucket.strategy)["name"])
        if formula is None:
            raise ConfigError(f"no traffic is known of strategy {bucket.strategy!r}: {nearest('', FORMULAS)}")
        rounds = formula(bucket, workers)
        fixed = all(unit.compressor.fixed_size for unit in bucket.units)
        whole = registry.build("strategies", bucket.strategy).gathers
        if whole and fixed and is_carried(bucket.dense, workers):
            (alone,) = rounds
            nbytes = align(int(alone.sent) + 4 * bucket.dense)
            return PredictedTraffic((), (Round(alone.kind, nbytes, nbytes),))
    return PredictedTraffic(dense_traffic(bucket.dense, workers), rounds)


def traffic_of_hosts(bucket: DividedBucket, workers: int, size: int) -> PredictedTraffic:
    """Predict the rounds of a bucket under ``hierarchical``, with those inside the hosts.

    Args:
        bucket: shared form of the bucket, from ``shared``.
        workers: number of workers that exchange it.
        size: ranks of a host.
    """
    sent = traffic(replace(bucket, strategy=f"hierarchical:ranks_per_host={size}"), workers)
    if not sent.rounds:
        return sent
    moved = 4 * (size - 1) / size * sum(unit.numel for unit in bucket.units)
    sums, flags = Round("local", moved, moved), Round("local", size - 1, size - 1)
    across = [Round("hosts", each.sent, each.received) for each in sent.rounds]
    return PredictedTraffic(sent.dense, (sums, flags, *across, flags, sums))


def traffic_of_host_scatter(plain: float, sent: float, workers: int, size: int) -> PredictedTraffic:
    """Predict the rounds of a reduce-scatter whose hosts sum plainly first.

    Args:
        plain: bytes of the part of one owner, uncompressed.
        sent: bytes of its payload.
        workers: number of workers that reduce.
        size: ranks of a host.
    """
    hosts = workers // size
    inside, across = (size - 1) * hosts * plain, size * (hosts - 1) * sent
    flags = Round("local", size - 1, size - 1)
    return PredictedTraffic((), (Round("local", inside, inside), flags, Round("hosts", across, across)))


def dense_traffic(numel: int, workers: int, itemsize: int = 4) -> tuple[Round, ...]:
    """Predict the rounds of an all-reduce over elements of so many bytes."""
    return (ring(itemsize * numel, workers),) if numel and workers > 1 else ()


def declared(unit: Unit) -> float:
    return unit.compressor.traffic(unit.shape)


def ring(nbytes: float, workers: int) -> Round:
    """Predict the rounds of a ring all-reduce."""
    moved = 2 * (workers - 1) * nbytes / workers
    return Round("all_reduce", moved, moved)


def to_all(nbytes: float, workers: int) -> Round:
    return Round("exchange", (workers - 1) * nbytes, (workers - 1) * nbytes)


def pieces_of(units: Sequence[Unit]) -> list[Piece]:
    return [Piece(unit, unit.memory, unit.shape, unit.lo) for unit in units]


def message(units: Sequence[Unit]) -> int:
    return Part(pieces_of(units)).packing.nbytes


def _allreduce(bucket: DividedBucket, workers: int) -> tuple[Round, ...]:
    units, first = bucket.units, bucket.units[0].compressor
    if isinstance(first, MultiRound):
        count = first.rounds_needed
        return (ring(sum(declared(unit) for unit in units) / count, workers),) * count
    fields = (field for unit in units for field in unit.compressor.layout(unit.shape).fields)
    return (ring(sum(field.nbytes for field in fields), workers),)


def _allgather(bucket: DividedBucket, workers: int) -> tuple[Round, ...]:
    if all(unit.compressor.fixed_size for unit in bucket.units):
        return (to_all(message(bucket.units), workers),)
    used = bucket.used
    if used is None:
        used = _STATUS + sum(align(math.ceil(declared(unit))) for unit in bucket.units)
    sizes = 4 * sum(not unit.compressor.fixed_size for unit in bucket.units)
    return to_all(sizes, workers), to_all(used, workers)


def _broadcast(bucket: DividedBucket, workers: int) -> tuple[Round, ...]:
    if not all(unit.compressor.fixed_size for unit in bucket.units):
        return _allgather(bucket, workers)
    moved = (workers - 1) * message(bucket.units)
    return (Round("broadcast", moved, moved),)


def _two_phase(bucket: DividedBucket, workers: int) -> tuple[Round, ...]:
    parts = [Part(pieces) for pieces in cut(pieces_of(bucket.units), workers)]
    shards, means = ([part.packing.nbytes for part in each] for each in (parts, parts_of_means(parts)))
    return (
        Round("exchange", sum(shards) - min(shards), (workers - 1) * max(shards)),
        Round("exchange", (workers - 1) * max(means), sum(means) - min(means)),
    )


def _hierarchical(bucket: DividedBucket, workers: int) -> tuple[Round, ...]:
    built: Hierarchical = registry.build("strategies", bucket.strategy)
    hosts = workers // (built.ranks_per_host or 1)
    if hosts == 1:
        return ()
    rounds = list[Round]()
    for (way, _), units in grouped_by_way(bucket.units, hosts, built.between).items():
        rounds += FORMULAS[way](replace(bucket, units=units, strategy=way), hosts)
    return tuple(rounds)


def _oktopk(bucket: DividedBucket, workers: int) -> tuple[Round, ...]:
    entries = sum(unit.compressor.layout(unit.shape).fields[0].count for unit in bucket.units)
    head = 4 * (1 + len(bucket.units))
    told = to_all(8 * workers, workers)
    moved = to_all(head + 8 * entries / workers, workers)
    return told, moved, told, moved


FORMULAS = {
    "allreduce": _allreduce,
    "allgather": _allgather,
    "broadcast": _broadcast,
    "two_phase": _two_phase,
    "hierarchical": _hierarchical,
    "oktopk": _oktopk,
}
