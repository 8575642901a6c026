"""Cost of the exchange of a model's gradients beside a plain all-reduce: operations, bytes that they move, and time.

Two devices:

    cpu     real ranks over Gloo, processes of this machine with one torch thread each. First the result is checked;
            then steps take turns with a plain all-reduce of the same gradients, all ranks beginning together. A step
            ends when the slowest rank has its mean.
    meta    one process and no elements: nothing is computed, so every operation is counted as on a device on which
            nothing may branch on the host. The ranks are pretended (``bench/pretended.py``).

Invariants:
    * A step that is counted or timed comes after ``WARM_UP`` steps, in which buffers are made.
    * A wrong result is never timed.
    * A figure of time is the median of steps that took turns with what it is compared with.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import Named
from gradwire.engine.policy import Policy
from gradwire.errors import GradwireError, is_int, require
from gradwire.memory import facts
from gradwire.metrics import Metrics
from gradwire.testing.processes import RankFailedError, run_ranks
from gradwire.transport.recording import RecordingChannel
from gradwire_lab.bench.buckets import cut
from gradwire_lab.bench.hooks import HookRunner
from gradwire_lab.bench.machine import environment
from gradwire_lab.bench.operations import OperationCount, WouldWaitError
from gradwire_lab.bench.pretended import PretendedGroup, pretended_exchange
from gradwire_lab.bench.statistics import interleave, slowest_samples, summarise

__all__ = [
    "ALL_REDUCE",
    "DEVICES",
    "LEAST",
    "MOST",
    "WARM_UP",
    "ExchangePlan",
    "Rival",
    "WrongMeanError",
    "exchange_rows",
]

ALL_REDUCE = "all_reduce"
"""The label of the plain all-reduce."""

DEVICES = ("cpu", "meta")

WARM_UP = 3
"""Steps that are not counted: buffers are made in the first; torch's PowerSGD compresses from the third on."""

ROUNDING = 1e-5
"""The share of the gradients by which sums over the ranks may differ."""

NEAR = 1e-3
"""The share by which ranks may differ where torch does not promise the same bits."""

_SLACK = 4.0
"""Factor by which a random error's square may exceed its expectation, over all elements of a model."""

Row = dict[str, Any]


class WrongMeanError(GradwireError):
    """The mean that arrived is not within the bound of its method, or differs between ranks."""


@dataclass(frozen=True)
class Rival:
    """One way of averaging gradients.

    Args:
        label: label in the rows.
        compressor: ours; None: torch's own way.
        hook: hook of torch, its name under "name", with parameters; None, and no compressor: a plain all-reduce.
    """

    label: str
    compressor: Compressor | None = None
    hook: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ExchangePlan:
    """The plan of the measurement: model, ranks, buckets and time.

    Args:
        model: name of the model, for the rows.
        shapes: names and shapes of the model's parameters, in the order of the network.
        ranks: 2 to 64.
        device: "cpu" or "meta".
        megabytes: the size of a bucket as DDP's ``bucket_cap_mb``; None: one bucket.
        seconds: seconds that the steps of a method may take, > 0; ``LEAST`` are made in any case.
        busy: processes that compute beside the ranks, for the rows.

    Raises:
        ConfigError: a number out of range.
    """

    model: str
    shapes: Sequence[tuple[int, ...]]
    ranks: int = 4
    device: str = "meta"
    megabytes: float | None = None
    seconds: float = 10.0
    busy: int = 0

    def __post_init__(self) -> None:
        require(bool(self.shapes), "ExchangePlan.shapes", "at least one shape", self.shapes)
        require(is_int(self.ranks, 2, 64), "ExchangePlan.ranks", "an integer in [2, 64]", self.ranks)
        require(self.device in DEVICES, "ExchangePlan.device", f"one of {', '.join(DEVICES)}", self.device)
        fits = self.megabytes is None or 0 < self.megabytes < math.inf
        require(fits, "ExchangePlan.megabytes", "a number > 0, or None", self.megabytes)
        require(0 < self.seconds < math.inf, "ExchangePlan.seconds", "seconds > 0", self.seconds)

    @property
    def numel(self) -> int:
        """The number of elements of all parameters."""
        return sum(map(math.prod, self.shapes))

    def buckets(self) -> list[list[Named]]:
        """The parameters of each bucket."""
        return cut([(f"{number}", tuple(shape)) for number, shape in enumerate(self.shapes)], self.megabytes)

    @property
    def patience(self) -> float:
        """Seconds after which the ranks of a method must have finished."""
        return 120 + 20 * self.seconds + 2e-7 * self.numel * self.ranks


HOST_STEPS, HOST_SAMPLES, HOST_PATIENCE = 20, 15, 300.0
"""Steps in a sample of what the host costs, the number of samples, and the seconds in which they must be there."""

LEAST, MOST = 5, 200
"""Steps of a method that are timed."""


def exchange_rows(plan: ExchangePlan, rivals: Sequence[Rival], *, host: bool = False) -> Iterator[Row]:
    """Yield a row for each rival, ready for JSON, as soon as it was measured; a failure is a row with an ``error``.

    Args:
        plan: model, ranks, buckets and time of the measurement.
        rivals: methods to compare, at least one.
        host: measure ``host_seconds``, too, of our methods, each in a process of its own.
    """
    measure = _on_meta if plan.device == "meta" else _on_ranks
    for rival in rivals:
        row: Row = {
            "model": plan.model,
            "parameters": plan.numel,
            "tensors": len(plan.shapes),
            "device": plan.device,
            "ranks": plan.ranks,
            "bucket_mb": plan.megabytes,
            "buckets": len(plan.buckets()),
            "busy": plan.busy,
            "method": rival.label,
            "params": rival.compressor and capabilities.properties(rival.compressor)["params"],
        }
        try:
            row |= measure(plan, rival)
            if host and rival.compressor is not None:
                row["host_seconds"] = run_ranks(1, _host_alone, rival.compressor, timeout=HOST_PATIENCE)[0]
        except (GradwireError, RankFailedError) as error:
            row["error"] = str(error).strip().rpartition("\n")[2]
        yield row | environment() | {"threads": 1}


def _host_alone(_rank: int, compressor: Compressor) -> float:
    """The processor time that the host takes for a bucket of a few elements, alone in its process, in seconds: what an
    exchange costs whatever its size, on a channel that moves nothing.
    """
    torch.set_grad_enabled(False)
    channel, policy = RecordingChannel(2, Metrics(), echoes=False), Policy(min_numel=0)
    exchange = Exchange(compressor, channel=channel, policy=policy)
    params = [(f"{number}", (16, 16)) for number in range(4)]
    flat = torch.randn(4 * 16 * 16, generator=torch.Generator().manual_seed(1))

    def step() -> None:
        exchange.begin_step()
        exchange.run(flat, params)

    def sample() -> float:
        begun = time.thread_time()
        for _ in range(HOST_STEPS):
            step()
        return (time.thread_time() - begun) / HOST_STEPS

    return summarise([sample() for _ in range(1 + HOST_SAMPLES)][1:]).median


class _Buckets:
    """The gradients of one rank, bucket by bucket, and a copy to begin each step from."""

    def __init__(self, plan: ExchangePlan, rank: int) -> None:
        self.params = plan.buckets()
        sizes = [sum(math.prod(shape) for _, shape in params) for params in self.params]
        if plan.device == "meta":
            self.first = [torch.empty(size, device="meta") for size in sizes]
        else:
            generator = torch.Generator().manual_seed(1000 + rank)
            self.first = [torch.randn(size, generator=generator).mul_(1e-2) for size in sizes]
        self.flats = [each.clone() for each in self.first]

    def restore(self) -> None:
        for flat, first in zip(self.flats, self.first, strict=True):
            flat.copy_(first)


def _step(rival: Rival, buckets: _Buckets, exchange: Exchange | None, group: Any, world: int) -> Callable[[], None]:
    """Make a function that averages all buckets once."""
    pairs = list(zip(buckets.flats, buckets.params, strict=True))
    if rival.hook is not None:
        runner = HookRunner(rival.hook, group)
        return lambda: runner.step(pairs)

    def ours() -> None:
        assert exchange is not None
        exchange.begin_step()
        for flat, params in pairs:
            exchange.run(flat, params)

    def plain() -> None:
        for flat in buckets.flats:
            dist.all_reduce(flat.div_(world), group=group)

    return plain if exchange is None else ours


def _on_meta(plan: ExchangePlan, rival: Rival) -> Row:
    buckets, group = _Buckets(plan, 0), PretendedGroup(plan.ranks)
    exchange = None if rival.compressor is None else pretended_exchange(rival.compressor, plan.ranks)
    step = _step(rival, buckets, exchange, group, plan.ranks)

    def asked(steps: int) -> tuple[int, int]:
        return (group.begun, group.nbytes) if rival.hook else _asked(exchange, plan, steps)

    count = OperationCount("meta")
    try:
        with count:
            step()
    except WouldWaitError as error:
        return {"synchronisations": count.synchronisations, "skipped": f"the host would wait for the device: {error}"}
    for _ in range(WARM_UP - 1):
        step()
    figures = _counted("meta", step, asked, plan.numel)
    figures["synchronisations"] += count.synchronisations
    return figures | _times(interleave({"op": _timed(step)}, warm_up=0, seconds=min(plan.seconds, 1.0))["op"])


def _on_ranks(plan: ExchangePlan, rival: Rival) -> Row:
    results = run_ranks(plan.ranks, _rank, plan, rival, timeout=plan.patience)
    slowest = {name: slowest_samples(result["samples"][name] for result in results) for name in results[0]["samples"]}
    plain = summarise(slowest[ALL_REDUCE])
    mine = _times(slowest.get("op", slowest[ALL_REDUCE]))
    return {
        **results[0]["figures"],
        **mine,
        "all_reduce_seconds": plain.median,
        "all_reduce_low": plain.low,
        "all_reduce_high": plain.high,
        "ratio": mine["seconds"] / plain.median,
    }


def _rank(rank: int, plan: ExchangePlan, rival: Rival) -> Row:
    """Check, count and time one rival, on one of the ranks."""
    buckets, group = _Buckets(plan, rank), dist.new_group()
    exchange = None if rival.compressor is None else Exchange(rival.compressor, group=group)
    step = _step(rival, buckets, exchange, group, plan.ranks)
    checked = _check(plan, rival, exchange, buckets, step)
    for _ in range(WARM_UP - 1):
        buckets.restore()
        step()
    buckets.restore()

    figures = {} if rival.hook else _counted("cpu", step, partial(_asked, exchange, plan), plan.numel)
    other = _step(Rival(ALL_REDUCE), buckets, None, dist.group.WORLD, plan.ranks)
    contestants = {ALL_REDUCE: other} | ({} if rival.label == ALL_REDUCE else {"op": step})
    rounds = _rounds(plan, buckets, contestants)
    turns = {name: _timed(run, buckets.restore) for name, run in contestants.items()}
    samples = interleave(turns, least=rounds, most=rounds)
    _same_bits(rival, buckets)
    return {"figures": figures | {"checked": checked}, "samples": samples}


def _asked(exchange: Exchange | None, plan: ExchangePlan, steps: int) -> tuple[int, int]:
    """The collectives so far, and the bytes that this rank sent in them; a plain all-reduce has one for each bucket."""
    if exchange is None:
        return steps * len(plan.buckets()), steps * (2 * (plan.ranks - 1) * 4 * plan.numel // plan.ranks)
    return exchange.channel.traffic.begun, exchange.counters.bytes_sent


def _timed(run: Callable[[], None], prepare: Callable[[], None] | None = None) -> Callable[[], float]:
    """Make a contestant: it is prepared outside of the measured time, and all ranks begin together."""

    def once() -> float:
        if prepare is not None:
            prepare()
            dist.barrier()
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return once


def _times(samples: list[float]) -> Row:
    found = summarise(samples)
    return {"seconds": found.median, "seconds_low": found.low, "seconds_high": found.high, "rounds": found.count}


def _rounds(plan: ExchangePlan, buckets: _Buckets, contestants: Mapping[str, Callable[[], None]]) -> int:
    """The number of rounds for which the seconds suffice on the slowest rank."""
    taken = torch.tensor(sum(_timed(run, buckets.restore)() for run in contestants.values()))
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return min(MOST, max(LEAST, int(plan.seconds / float(taken))))


def _counted(device: str, step: Callable[[], None], asked: Callable[[int], tuple[int, int]], numel: int) -> Row:
    """Count the operations of one step."""
    before = asked(0)
    with OperationCount(device) as count:
        step()
    after = asked(1)
    return {
        "operations": count.operations,
        "collectives": after[0] - before[0],
        "bytes_sent": after[1] - before[1],
        "bytes_moved": count.nbytes,
        "bytes_per_element": count.nbytes / numel,
        "views": count.views,
        "allocations": count.allocations,
        "host_operations": count.host,
        "synchronisations": count.synchronisations,
        "counted": dict(count.names.most_common()),
    }


def _check(
    plan: ExchangePlan, rival: Rival, exchange: Exchange | None, buckets: _Buckets, step: Callable[[], None]
) -> str:
    """Make the first step, compare its result, and return the kind of the comparison.

    "identity": the mean that arrived and the mean of the residuals are the mean of the gradients. "bound": the error is
    within the variance factor or the contraction that the method declares. "rounding": that of the number's format.
    "bits": only that all ranks have the same. "near": only that they have nearly the same, of torch's PowerSGD.

    Raises:
        WrongMeanError: the result is wrong on this or another rank; raised on every rank.
    """
    step()
    _same_bits(rival, buckets)
    error, allowed, kind = 0.0, 0.0, ""
    for flat, first, params in zip(buckets.flats, buckets.first, buckets.params, strict=True):
        mean = first / plan.ranks
        dist.all_reduce(mean)
        size = first.square().sum() / plan.ranks
        dist.all_reduce(size)
        kind, lost, most = _error(rival, exchange, flat - mean, params, float(size), plan.ranks)
        error, allowed = error + lost, allowed + most
    if not error <= allowed and kind not in ("bits", "near"):
        raise WrongMeanError(
            f"{rival.label}: the mean of {plan.ranks} ranks is off by {math.sqrt(error):.3g}, and by its {kind} "
            f"{math.sqrt(allowed):.3g} are allowed; nothing was timed"
        )
    return kind


def _error(
    rival: Rival, exchange: Exchange | None, off: Tensor, params: Sequence[Named], size: float, world: int
) -> tuple[str, float, float]:
    """The kind of the check, the square of the error, and the square of the largest allowed error.

    Args:
        rival: method that averaged.
        exchange: exchange that averaged, if the method is ours.
        off: the mean that arrived less the mean of the gradients.
        params: names and shapes of the bucket's parameters.
        size: the mean over the ranks of the square of a gradient.
        world: the number of ranks.
    """
    if exchange is None or rival.compressor is None:
        limit = {"bf16": 2.0**-7, "fp16": 2.0**-9}.get(str((rival.hook or {}).get("name")), ROUNDING)
        plain = rival.hook is None or rival.hook["name"] != "powersgd"
        return ("rounding" if plain else "near"), float(off.square().sum()), limit**2 * size
    code, memory = exchange.methods.compressor, exchange.methods.memory_for(exchange.methods.compressor)
    other = not capabilities.average(code) or capabilities.settles(code) or capabilities.votes(code)
    if other or not facts.plain(memory):
        return "bits", 0.0, 0.0
    if not facts.keeps_nothing(memory):
        off = off + _waiting(exchange, params, world)
        return "identity", float(off.square().sum()), ROUNDING**2 * size
    numel = sum(math.prod(shape) for _, shape in params)
    policy = exchange.methods.policy
    units = [math.prod(shape) for name, shape in params if policy.choose(name, shape, code) is not None]
    largest = max(units, default=1)
    if code.unbiased and math.isfinite(omega := max(capabilities.omega(code, each) for each in (1, largest, numel))):
        # The bound is that of all ranks together, and once more where an owner compresses the mean.
        return "bound", float(off.square().sum()), (_SLACK * omega * (2 + omega) / world + ROUNDING**2) * size
    delta = min(capabilities.delta(code, each) for each in (largest, numel))
    if capabilities.contraction(code) and delta > 0:
        return "bound", float(off.square().sum()), (1 - delta + ROUNDING**2) * size
    return "bits", 0.0, 0.0


def _waiting(exchange: Exchange, params: Sequence[Named], world: int) -> Tensor:
    """The mean over the ranks of the residuals of a bucket's parameters; an owner's part counts for all ranks."""
    kept = exchange.residuals.state_dict()
    parts = []
    for name, shape in params:
        waits = torch.zeros(math.prod(shape))
        if name in kept["worker"].get("residual", {}):
            waits += kept["worker"]["residual"][name]
        for lo, view in kept["owned"].get(name, {}).get("residual", {}).items():
            waits[int(lo) : int(lo) + view.numel()] += world * view
        parts.append(waits)
    total = torch.cat(parts).div_(world)
    dist.all_reduce(total)
    return total


def _same_bits(rival: Rival, buckets: _Buckets) -> None:
    """Refuse ranks with different results; torch's PowerSGD may differ by rounding, because each rank makes its factors
    orthonormal with a BLAS.

    Raises:
        WrongMeanError: the bits differ between ranks; raised on every rank.
    """
    if rival.hook is not None and rival.hook["name"] == "powersgd":
        _near(rival, buckets)
        return
    digest = hashlib.sha256(b"".join(flat.numpy().tobytes() for flat in buckets.flats)).hexdigest()
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, digest)
    if len(set(found)) > 1:
        raise WrongMeanError(f"{rival.label}: the ranks have different bits; nothing was timed")


def _near(rival: Rival, buckets: _Buckets) -> None:
    for flat in buckets.flats:
        first = flat.clone()
        dist.broadcast(first, 0)
        far = (first - flat).norm() / first.norm().clamp_min(1e-30)
        dist.all_reduce(far, dist.ReduceOp.MAX)
        if not float(far) <= NEAR:
            raise WrongMeanError(f"{rival.label}: the ranks differ by {float(far):.1e}; nothing was timed")
