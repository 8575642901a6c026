"""Measurements before any prediction: the backward pass, the codecs and the links.

Each measurement is one group of fresh workers. Workers that share a machine compute at the same time, so whatever they
take from each other, cores and memory, is in the figures.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.auto.link_cost import Wire
from gradwire.compressors.base import Compressor
from gradwire.errors import require
from gradwire.metrics import Metrics
from gradwire.transport.channel import Channel
from gradwire_lab.advise.codec import Codec, CodecTimes, measure, slowest
from gradwire_lab.advise.examples import example
from gradwire_lab.advise.profile import BucketProfile, Profile, middle, profile_step, shortest
from gradwire_lab.bench.machine import busy_seconds, crowded
from gradwire_lab.experiments import models
from gradwire_lab.experiments.launch import launch
from gradwire_lab.experiments.replay import Replayed
from gradwire_lab.netlab import Link, Netlab
from gradwire_lab.netlab.link import PAYLOAD_SHARE

__all__ = ["NO_TIME", "Alphas", "Wanted", "gauge_codecs", "gauge_model", "gauge_replayed", "gauge_wire", "measure_wire"]

STEPS = 5
"""Steps of a model that count, fewer where they take longer than the budget."""

SMALL_REPEATS, LARGE_REPEATS = 40, 5
_LARGE = 8 << 20
_SMALL = 64
_TIMEOUT = 300.0

NO_TIME = "there was no time left to measure it: give more of it (--within), or fewer methods (--method)"
"""Reason why a codec has no figures."""


@dataclass(frozen=True)
class Wanted:
    """A codec to measure.

    Args:
        compressor: compressor with its parameters.
        strategy: registered name.
        workers: world size that the exchange is told.
    """

    compressor: Compressor
    strategy: str
    workers: int


@dataclass(frozen=True)
class Alphas:
    """Figures of its link that a group of workers measured.

    Args:
        exchange: seconds of a round of 64 bytes from everyone to everyone.
        all_reduce: seconds of one over 64 bytes.
        rate: bytes a second that a worker can receive while it sends as many, through the processor and the link.
        cores: cores of this machine that the transport keeps busy for each worker meanwhile.
    """

    exchange: float
    all_reduce: float
    rate: float
    cores: float = 0.0

    @classmethod
    def of(cls, found: Sequence[Mapping[str, list[float]]]) -> Alphas:
        """The figures of workers that each made ``measure_wire``."""
        workers = len(found)
        exchange, all_reduce, large = (
            slowest([each[name] for each in found]) for name in ("exchange", "reduce", "large")
        )
        bytes_sent = (workers - 1) * _share(workers)
        return cls(exchange, all_reduce, bytes_sent / max(large - exchange, large / 2), found[0]["busy"][0] / workers)

    def wire(self, workers: int, link: Link) -> Wire:
        """The model of this link: its nominal rate, or the measured one if that is lower."""
        latency = self.all_reduce / (2 * (workers - 1))
        message = max(0.0, self.exchange - latency) / (workers - 1)
        limit = self.rate if link.rate is None else min(self.rate, link.rate / 8 * PAYLOAD_SHARE)
        return Wire(workers, limit, latency, message, self.cores)


def gauge_model(
    name: str,
    batch: int,
    *,
    small: bool = False,
    threads: int = 1,
    budget: float = math.inf,
    until: float | None = None,
) -> Profile:
    """One worker's training step of a model of ``gradwire models``, on this processor, on random examples.

    Args:
        name: name of the model.
        batch: examples.
        small: the small variant.
        threads: number of torch's threads.
        budget: seconds after which no further step is made; see ``profile_step``.
        until: ``time.time()`` at which it is given up; None: never.

    Raises:
        OutOfTimeError: the measurement was given up at ``until``.
    """
    return _once(launch(1, _model, name, batch, small, threads, budget, timeout=_TIMEOUT, until=until))


def gauge_replayed(name: str, workers: int, *, small: bool = False) -> Profile:
    """The replay's backward pass on workers that share this machine: mostly the copying of gradients.

    Args:
        name: name of the model.
        workers: processes that run it at the same time.
        small: the small variant.
    """
    return _once(launch(workers, _replayed, name, small, timeout=_TIMEOUT))


def gauge_codecs(
    buckets: Sequence[BucketProfile],
    wanted: Sequence[Wanted],
    *,
    together: int = 1,
    threads: int = 1,
    budget: float = 10.0,
    progress: Callable[[str], object] = lambda _: None,
    until: float = math.inf,
    typical: Callable[[Iterable[float]], float] = min,
) -> list[Codec | str]:
    """The seconds of each codec, bucket by bucket, or why there are none. One worker alone measures in this process.

    Args:
        buckets: buckets of the model.
        wanted: codecs to measure.
        together: workers on this machine that encode at the same time.
        threads: threads of each worker.
        budget: seconds for each; see ``measure``.
        progress: function that is called with a line before the work.
        until: ``time.time()`` after which no codec is begun.
        typical: function that picks the typical one of the repeats; see ``Codec.of_workers``.
    """
    progress(f"timing {len(wanted)} codecs on {together} x {threads} threads, at most about {budget:g} s each")
    work = tuple(buckets), tuple(wanted), together, threads, budget, until
    results = [_alone(*work)] if together == 1 else launch(together, _codecs, *work, timeout=_TIMEOUT + budget)
    columns = zip(*results, strict=True)
    return [
        column[0] if isinstance(column[0], str) else Codec.of_workers(column, each.workers, typical)
        for each, column in zip(wanted, columns, strict=True)
    ]


def gauge_wire(workers: int, lab: Netlab | None = None, until: float | None = None) -> Alphas:
    """Measure the cost of the link between workers on this machine.

    Args:
        workers: number of workers, >= 2.
        lab: lab whose links are measured; None: the loopback.
        until: ``time.time()`` at which it is given up; None: never.

    Raises:
        OutOfTimeError: the measurement was given up at ``until``.
    """
    return Alphas.of(launch(workers, measure_wire, timeout=_TIMEOUT, lab=lab, until=until))


def _once(profiles: Sequence[Profile]) -> Profile:
    """The mean profile of workers that ran at the same time; they wait for each other in every bucket."""
    return middle(profiles, busy=profiles[0].busy)


def _model(name: str, batch: int, small: bool, threads: int, budget: float) -> Profile:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = models.build(name, small=small)
    inputs = example(model, name, batch, small=small)
    wrapped = DistributedDataParallel(model)
    return profile_step(wrapped, lambda: _train(wrapped, inputs), STEPS, budget=budget, typical=shortest)


def _train(model: nn.Module, inputs: torch.Tensor) -> None:
    model.zero_grad(set_to_none=True)
    forget = getattr(getattr(model, "module", model), "reset", None)
    if forget is not None:
        forget()
    model(inputs).square().mean().backward()


def _replayed(name: str, small: bool) -> Profile:
    replayed = Replayed(models.facts(name, small=small).shapes, seed=dist.get_rank())
    model = DistributedDataParallel(replayed, init_sync=False)

    def before() -> None:
        model.zero_grad(set_to_none=True)
        dist.barrier()

    def step() -> None:
        model(torch.zeros((), requires_grad=True)).backward()

    return profile_step(model, step, STEPS, before=before, clock=crowded(dist.get_world_size()))


def _alone(
    buckets: Sequence[BucketProfile], wanted: Sequence[Wanted], together: int, threads: int, budget: float, until: float
) -> list[list[CodecTimes] | str]:
    """Measure the codecs in this process, and restore its number of threads."""
    before = torch.get_num_threads()
    try:
        return _codecs(buckets, wanted, together, threads, budget, until)
    finally:
        torch.set_num_threads(before)


def _codecs(
    buckets: Sequence[BucketProfile], wanted: Sequence[Wanted], together: int, threads: int, budget: float, until: float
) -> list[list[CodecTimes] | str]:
    torch.set_num_threads(threads)
    clock = crowded(together * threads)
    meet = float if together == 1 else _meet
    found: list[list[CodecTimes] | str] = []
    for each in wanted:
        if meet(time.time()) > until:
            found.append(NO_TIME)
            continue
        options = {"strategy": each.strategy}
        found.append(
            measure(buckets, each.compressor, each.workers, options=options, meet=meet, clock=clock, budget=budget)
        )
    return found


def _meet(seconds: float) -> float:
    """Wait for the other workers; return the seconds of the slowest."""
    slowest_of_all = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(slowest_of_all, dist.ReduceOp.MAX)
    return slowest_of_all.item()


def _share(workers: int) -> int:
    """Divide the bytes of a large exchange evenly among the peers."""
    return _LARGE // (workers - 1)


def measure_wire(device: str = "cpu") -> Mapping[str, list[float]]:
    """The seconds of small and of large messages between the workers of the default group. All must call it.

    Args:
        device: device of the messages: "cuda" over NCCL, "cpu" over Gloo.
    """
    group = dist.new_group(backend="nccl" if device == "cuda" else "gloo")
    assert isinstance(group, dist.ProcessGroup)
    channel = Channel(group, Metrics())
    require(channel.world >= 2, "workers", "an integer >= 2", channel.world)
    tiny = torch.zeros(channel.world, _SMALL, dtype=torch.uint8, device=device)
    sums = torch.zeros(_SMALL // 4, device=device)
    large = torch.zeros(channel.world, _share(channel.world), dtype=torch.uint8, device=device)

    def ended(call: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            call()
            if device == "cuda":
                torch.cuda.synchronize()

        return run

    found = {
        "exchange": _times(ended(lambda: channel.all_gather(tiny)), SMALL_REPEATS),
        "reduce": _times(ended(lambda: channel.all_reduce(sums)), SMALL_REPEATS),
    }
    busy, start = busy_seconds(), time.perf_counter()
    found["large"] = _times(ended(lambda: channel.all_gather(large)), LARGE_REPEATS)
    return found | {"busy": [(busy_seconds() - busy) / (time.perf_counter() - start)]}


def _times(call: Callable[[], Any], repeats: int, warm_up: int = 2) -> list[float]:
    samples = []
    for _ in range(warm_up + repeats):
        dist.barrier()
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return samples[warm_up:]
