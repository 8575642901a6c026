"""Measurement of a real cluster: its links, and what an exchange of a model's gradients takes on them."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gradwire.engine.exchange import Exchange
from gradwire.errors import ConfigError, GradwireError, GroupError, is_int, require
from gradwire.version import __version__
from gradwire_lab.experiments.cluster import placed
from gradwire_lab.experiments.method_text import parse_method

__all__ = ["METHODS", "ClusterPlan", "ClusterReport", "check_cluster"]

METHODS = ("none", "bf16", "qsgd:bits=8", "qsgd", "eden:bits=2", "eden")
"""Methods without a residual, which suit every optimizer: what ``auto`` chooses among, and one of fewer bits."""

LARGEST = 1 << 24
"""Elements that are exchanged at most; the time of a larger model is scaled from there."""

PINGS, STEPS, WIDTH = 30, 4, 1024

HIDDEN = 2 / 3
"""The share of a step's computation, its backward pass, beside which DDP exchanges gradients."""


@dataclass(frozen=True)
class ClusterPlan:
    """The measurements that are made.

    Args:
        parameters: elements of the model, >= 1.
        methods: methods that are tried.
        compute: seconds that a step computes; None: not known, and nothing is said of steps.
        timeout: seconds that a rank waits for another one, > 0.

    Raises:
        ConfigError: a number out of range.
    """

    parameters: int
    methods: Sequence[str] = METHODS
    compute: float | None = None
    timeout: float = 180.0

    def __post_init__(self) -> None:
        require(is_int(self.parameters, 1), "ClusterPlan.parameters", "an integer >= 1", self.parameters)
        fits = self.compute is None or self.compute > 0
        require(fits, "ClusterPlan.compute", "seconds > 0, or None", self.compute)
        require(self.timeout > 0, "ClusterPlan.timeout", "seconds > 0", self.timeout)

    @property
    def sent(self) -> int:
        """The number of elements that are exchanged."""
        return min(LARGEST, -(-self.parameters // WIDTH) * WIDTH)


@dataclass(frozen=True)
class ClusterReport:
    """The measurements.

    Args:
        ranks: host, interface, versions and device of each rank.
        backend: backend of the group.
        latency: seconds of a message from one rank to the next.
        bits_per_second: payload that a rank sends a second in an all-reduce.
        exchanges: seconds for the gradients of the whole model, by method.
        steps: seconds of a step by method, expected; empty where the time to compute is not known.
    """

    ranks: list[dict[str, str]]
    backend: str
    latency: float
    bits_per_second: float
    exchanges: dict[str, float]
    steps: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return asdict(self)

    @property
    def differences(self) -> list[str]:
        """The facts that must be the same on all ranks, and are not."""
        return [name for name in ("gradwire", "torch") if len({each[name] for each in self.ranks}) > 1]


def check_cluster(plan: ClusterPlan) -> ClusterReport:
    """Measure the cluster in which torchrun, or srun, has started this process as one of its ranks.

    All ranks return the same report, and have their ``RANK`` in the environment afterwards.

    Raises:
        ConfigError: the process is not a rank of such a job.
        GroupError: the ranks did not find each other in time, or one of them ended early.
    """
    place = placed(os.environ)
    if place is None or place.world == 1:
        raise ConfigError(
            "check cluster must be started on the hosts that will train, as `torchrun --nnodes 2 --nproc-per-node 1 "
            "--rdzv-backend c10d --rdzv-endpoint HOST:29500 -m gradwire check cluster`, or with srun, got one process "
            "alone"
        )
    place.tell()
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=plan.timeout))
    except (RuntimeError, ValueError) as error:
        raise GroupError(f"the ranks did not find each other within {plan.timeout:g} s: {error}") from None
    try:
        return _measured(plan)
    except RuntimeError as error:
        if isinstance(error, GradwireError):
            raise
        raise GroupError(f"another rank ended early, or cannot be reached any more: {error}") from None
    finally:
        dist.destroy_process_group()


def _measured(plan: ClusterPlan) -> ClusterReport:
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, _facts())
    latency = _slowest(_latency())
    rate = -_slowest(-_rate(plan.sent))
    exchanges = dict(_exchanges(plan))
    steps: dict[str, float] = {}
    if plan.compute is not None:
        hidden = HIDDEN * plan.compute
        steps = {name: plan.compute + max(0.0, seconds - hidden) for name, seconds in exchanges.items()}
    return ClusterReport(ranks, dist.get_backend(), latency, rate, exchanges, steps)


def _facts() -> dict[str, str]:
    return {
        "host": socket.gethostname(),
        "interface": os.environ.get("GLOO_SOCKET_IFNAME", "chosen by Gloo"),
        "gradwire": __version__,
        "torch": torch.__version__,
        "gpus": str(torch.cuda.device_count()),
    }


def _slowest(number: float) -> float:
    told = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return float(told)


def _latency() -> float:
    """The seconds of a message of one number from one rank to the next."""
    number, times = torch.zeros(1), []
    for _ in range(PINGS):
        start = time.perf_counter()
        dist.all_reduce(number)
        times.append(time.perf_counter() - start)
    return min(times) / max(1, 2 * (dist.get_world_size() - 1))


def _rate(elements: int) -> float:
    """The bits that a rank sends a second in an all-reduce of float32."""
    world, tensor = dist.get_world_size(), torch.ones(elements)
    seconds = statistics.median(_times(lambda: dist.all_reduce(tensor)))
    return 8 * 2 * (world - 1) / world * tensor.nbytes / seconds


def _times(run: Callable[[], object]) -> list[float]:
    """The seconds of some runs that all ranks begin together; the first one is not counted."""
    found = []
    for _ in range(STEPS):
        dist.barrier()
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found[1:]


def _exchanges(plan: ClusterPlan) -> Iterator[tuple[str, float]]:
    """The seconds of an exchange of the whole model by each method, those of the slowest rank."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    flat = torch.randn(plan.sent, generator=generator)
    params = [("weight", (plan.sent // WIDTH, WIDTH))]
    for text in plan.methods:
        group = dist.new_group()
        exchange = Exchange(parse_method(text), group=group)

        def step(exchange: Exchange = exchange) -> None:
            exchange.begin_step()
            exchange.run(flat.clone(), params)

        seconds = statistics.median(_times(step))
        exchange.channel.close()
        dist.destroy_process_group(group)
        yield text, _slowest(seconds) * max(1.0, plan.parameters / plan.sent)
