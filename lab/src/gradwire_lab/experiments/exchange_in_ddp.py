"""Cost of ``compress_ddp`` beside plain DDP on the loopback: the hook, its thread, and the exchange, in one step.

Two DDP models of the same parameters take turns on the same ranks, one with the method and one without a hook. Their
backward passes compute nothing but hand out gradients (``experiments/replay.py``), so a difference is the exchange's.
With ``none``, which compresses nothing, it is the price of being there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gradwire.compressors import capabilities
from gradwire.errors import ConfigError, GradwireError
from gradwire.frontends.ddp import compress_ddp
from gradwire.testing.processes import RankFailedError, run_ranks
from gradwire_lab.bench.exchange import LEAST, MOST, WARM_UP, ExchangePlan, Rival, WrongMeanError
from gradwire_lab.bench.machine import environment
from gradwire_lab.bench.statistics import interleave, slowest_samples, summarise
from gradwire_lab.experiments.replay import Replayed, digest_of, time_exchange

__all__ = ["PLAIN", "ddp_rows"]

PLAIN = "ddp"
"""The label of DDP without a hook."""

Row = dict[str, Any]


def ddp_rows(plan: ExchangePlan, rivals: Sequence[Rival]) -> Iterator[Row]:
    """Yield a row for each rival with a compressor as soon as it was measured; a failure is a row with an ``error``.

    Args:
        plan: plan of the exchange, on the CPU; where it has no size of a bucket, the size is DDP's own.
        rivals: methods to compare, at least one.

    Raises:
        ConfigError: another device, or one of torch's own hooks.
    """
    if plan.device != "cpu" or any(rival.compressor is None for rival in rivals):
        raise ConfigError("beside DDP only methods of gradwire are measured, and on the CPU")
    for rival in rivals:
        row: Row = {
            "model": plan.model,
            "parameters": plan.numel,
            "tensors": len(plan.shapes),
            "device": PLAIN,
            "ranks": plan.ranks,
            "bucket_mb": plan.megabytes,
            "busy": plan.busy,
            "method": rival.label,
        }
        try:
            row |= _figures(run_ranks(plan.ranks, _rank, plan, rival, timeout=plan.patience))
        except (GradwireError, RankFailedError) as error:
            row["error"] = str(error).strip().rpartition("\n")[2]
        yield row | environment() | {"threads": 1}


def _figures(results: Sequence[Row]) -> Row:
    slowest = {
        name: summarise(slowest_samples(result["samples"][name] for result in results)) for name in ("op", PLAIN)
    }
    mine, plain = slowest["op"], slowest[PLAIN]
    return {
        "buckets": results[0]["buckets"],
        "bytes_sent": results[0]["bytes_sent"],
        "seconds": mine.median,
        "seconds_low": mine.low,
        "seconds_high": mine.high,
        "rounds": mine.count,
        "all_reduce_seconds": plain.median,
        "all_reduce_low": plain.low,
        "all_reduce_high": plain.high,
        "ratio": mine.median / plain.median,
    }


def _rank(rank: int, plan: ExchangePlan, rival: Rival) -> Row:
    shapes = {str(number): tuple(shape) for number, shape in enumerate(plan.shapes)}
    plain, ours = (
        DistributedDataParallel(Replayed(shapes, seed=rank), init_sync=False, bucket_cap_mb=plan.megabytes)
        for _ in range(2)
    )
    state = compress_ddp(ours, rival.compressor)
    try:
        for _ in range(WARM_UP):
            for model in (ours, plain):
                time_exchange(model)
        taken = torch.tensor(time_exchange(ours) + time_exchange(plain))
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        rounds = min(MOST, max(LEAST, int(plan.seconds / float(taken))))
        before = state.metrics()["bytes_sent"]
        samples = interleave(
            {"op": lambda: time_exchange(ours), PLAIN: lambda: time_exchange(plain)},
            warm_up=0,
            least=rounds,
            most=rounds,
        )
        _check(rival, ours, plain)
        counted = state.metrics()
        buckets = len(json.loads(state.state_dict()["buckets"]))
    finally:
        state.close()
    return {"samples": samples, "bytes_sent": (counted["bytes_sent"] - before) // rounds, "buckets": buckets}


def _check(rival: Rival, ours: DistributedDataParallel, plain: DistributedDataParallel) -> None:
    """Refuse ranks that differ, and a method without compression whose result is not that of DDP.

    Raises:
        WrongMeanError: the result is wrong on this or another rank; raised on every rank.
    """
    means, wanted = _gradients(ours), _gradients(plain)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, digest_of(ours))
    if len(set(found)) > 1:
        raise WrongMeanError(f"{rival.label}: the ranks have different bits")
    identity = rival.compressor is not None and capabilities.identity(rival.compressor)
    if identity and not all(torch.allclose(*pair, rtol=1e-5, atol=1e-8) for pair in zip(means, wanted, strict=True)):
        raise WrongMeanError(f"{rival.label}: it is not the mean that DDP gives")


def _gradients(model: DistributedDataParallel) -> list[Tensor]:
    return [param.grad for param in model.parameters() if param.grad is not None]
