"""Exchange of a model's gradients without computing them: the cost of a step on a link, with each method.

A replayed model has the parameters of the real one, in their order, and no layers. Its backward pass hands out one
gradient after the other, from the last parameter to the first, of random values that are the worker's own. DDP sorts
them into its buckets, and the exchange is the one that training uses, with its hook and its thread.

Invariants:
    * A row is one method in one group of fresh workers.
    * A step begins when all workers are ready and ends when the slowest one has its averaged gradients.
    * At the end all workers must hold the same bits, or the row is an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.errors import GradwireError, GroupError, is_int, require
from gradwire.frontends.ddp import GradwireState, compress_ddp
from gradwire.registry import named_of
from gradwire_lab.bench.machine import environment
from gradwire_lab.bench.statistics import slowest_samples, summarise
from gradwire_lab.experiments import models
from gradwire_lab.experiments.decisions import DecisionLog, Entry
from gradwire_lab.experiments.launch import launch
from gradwire_lab.experiments.process_figures import digest_of_tensors, interface_bytes
from gradwire_lab.experiments.torchhooks import TorchHook
from gradwire_lab.netlab import Link, Netlab, lab_for

__all__ = [
    "DECIDING",
    "GRADIENTS",
    "HOOKS",
    "WARM_UP",
    "Contestant",
    "ReplayPlan",
    "Replayed",
    "agreed",
    "attached",
    "digest_of",
    "facts_of",
    "params_of",
    "replay",
    "time_exchange",
    "wrapped",
]

HOOKS = ("ddp", "fp16", "powersgd")
"""Torch's own ways: no hook at all, and two hooks."""

GRADIENTS = ("normal", "trained")
"""Kinds of replayed gradients: normal random values, alike in all layers; or a signal that all workers share and noise
of each worker's own, both with heavy tails, and larger in some layers than in others, as in training."""

SIGNAL = 0.1
"""The share of the squared norm of a worker's gradient that is signal, in "trained" gradients: of batches that are
small beside the noise scale, which is when several workers pay."""

TAIL = 0.7
"""Standard deviation of the logarithms of the standard deviations of the elements of a layer: a kurtosis of 21."""

LAYERS = 1.0
"""Standard deviation of the logarithms of the scales of layers."""

WARM_UP = 2
"""Steps that do not count: DDP rebuilds its buckets after the first, and buffers are made in the one after."""

DECIDING = 32
"""Steps of "auto" that do not count: it watches uncompressed ones, tries methods, and decides; how it did is known
after some more."""

_LEAST_STEPS = 3

Row = dict[str, Any]


@dataclass(frozen=True)
class Contestant:
    """A way to exchange gradients.

    Args:
        label: label in the rows.
        compressor: ours, or "auto" with its parameters; None: one of ``HOOKS``, named by the label.
        options: further arguments of ``compress_ddp``.
    """

    label: str
    compressor: Compressor | str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplayPlan:
    """The plan of a replay.

    Args:
        model: name of the model in ``gradwire models``.
        small: the small variant.
        workers: processes on this machine, 2 to 64.
        link: link between the workers.
        steps: number of steps that count, >= 3, unless ``budget`` allows fewer.
        budget: seconds that the steps of a method may take, > 0; 3 steps are made in any case.
        compute: seconds that a backward pass pretends to compute, >= 0, spread evenly over the tensors; the processor
            is free meanwhile, as if an accelerator computed.
        gradients: one of ``GRADIENTS``.

    Raises:
        ConfigError: a number out of range, no such model.
    """

    model: str
    small: bool = False
    workers: int = 4
    link: Link = field(default_factory=Link)
    steps: int = 10
    budget: float = 60.0
    compute: float = 0.0
    gradients: str = "normal"

    def __post_init__(self) -> None:
        models.find(self.model)
        require(is_int(self.workers, 2, 64), "ReplayPlan.workers", "an integer in [2, 64]", self.workers)
        require(is_int(self.steps, _LEAST_STEPS), "ReplayPlan.steps", f"an integer >= {_LEAST_STEPS}", self.steps)
        require(self.budget > 0, "ReplayPlan.budget", "seconds > 0", self.budget)
        require(self.compute >= 0, "ReplayPlan.compute", "seconds >= 0", self.compute)
        require(self.gradients in GRADIENTS, "ReplayPlan.gradients", " or ".join(GRADIENTS), self.gradients)

    @property
    def patience(self) -> float:
        """The time-out of a collective in seconds: ten times an uncompressed gradient over the link, and a minute."""
        nbytes = 4 * models.facts(self.model, small=self.small).parameters
        return 60 + 10 * 8 * nbytes / (self.link.rate or 1e9)


@dataclass(frozen=True)
class Result:
    """The figures of one worker over the counted steps. ``interface_bytes`` is None on the loopback, and ``decisions``
    without a controller.
    """

    seconds: list[float]
    bytes_sent: float | None
    ratio: float | None
    phases: dict[str, float] | None
    interface_bytes: float | None
    digest: str
    decisions: list[Entry] | None = None


def replay(plan: ReplayPlan, contestants: Sequence[Contestant]) -> Iterator[Row]:
    """Yield a row for each contestant, ready for JSON, as soon as it was measured; a failure is a row with an
    ``error``.

    Args:
        plan: the model and the link.
        contestants: contestants, at least one; ``speedup`` refers to the first of them, and is left out if that one
            failed.

    Raises:
        ConfigError: a link needs root or iproute2, and there is none.
    """
    with lab_for(plan.workers, plan.link) as made:
        first: Row | None = None
        for contestant in contestants:
            row = _row(plan, contestant, made)
            first = first or row
            if "seconds" in first and "seconds" in row:
                row["speedup"] = first["seconds"] / row["seconds"]
            yield row


def facts_of(plan: ReplayPlan, lab: Netlab | None) -> Row:
    """Describe a replay for JSON."""
    size = models.facts(plan.model, small=plan.small)
    return {
        "model": size.name,
        "parameters": size.parameters,
        "tensors": size.tensors,
        "workers": plan.workers,
        "link": str(plan.link),
        "tcp": None if lab is None else lab.congestion,
        "compute": plan.compute,
        "gradients": plan.gradients,
    }


def _row(plan: ReplayPlan, contestant: Contestant, lab: Netlab | None) -> Row:
    row: Row = {
        **facts_of(plan, lab),
        "method": contestant.label,
        "params": params_of(contestant.compressor),
        "options": dict(contestant.options),
    }
    try:
        row |= _figures(launch(plan.workers, exchange, plan, contestant, timeout=plan.patience, lab=lab))
    except GradwireError as error:
        row["error"] = " ".join(str(error).split())
    return row | environment() | {"threads": 1}


def params_of(compressor: Compressor | str | None) -> Mapping[str, Any] | None:
    """The parameters of a method, or of "auto"; None for a hook of torch's."""
    if isinstance(compressor, str):
        return {name: value for name, value in named_of(compressor).items() if name != "name"}
    return None if compressor is None else capabilities.properties(compressor)["params"]


def _figures(results: Sequence[Result]) -> Row:
    if len({result.digest for result in results}) > 1:
        raise GroupError("workers ended with different gradients")
    samples = slowest_samples(result.seconds for result in results)
    step, mine = summarise(samples), results[0]
    interface = [result.interface_bytes for result in results if result.interface_bytes is not None]
    return {
        "seconds": step.median,
        "seconds_low": step.low,
        "seconds_high": step.high,
        "steps": len(samples),
        "bytes_sent": mine.bytes_sent,
        "ratio": mine.ratio,
        "phases": mine.phases,
        "interface_bytes": sum(interface) / len(interface) if interface else None,
        "decisions": mine.decisions,
        "samples": samples,
    }


class Replayed(nn.Module):
    """A model without layers: parameters of given shapes, whose gradients are their own values.

    Args:
        shapes: shapes of the parameters by name, in the order of the network.
        compute: seconds that the backward pass sleeps, a part of it before each gradient.
        seed: seed of the values, a worker's own.
        gradients: one of ``GRADIENTS``.

    Source:
        S. McCandlish et al., "An Empirical Model of Large-Batch Training", 2018 (signal and noise);
        U. Simsekli et al., "A Tail-Index Analysis of Stochastic Gradient Noise in Deep Neural Networks", ICML 2019.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], compute: float = 0.0, seed: int = 0, gradients: str = "normal"
    ) -> None:
        super().__init__()
        own = torch.Generator().manual_seed(seed)
        self.pause = compute / max(1, len(shapes))
        made = (_normal if gradients == "normal" else _as_trained)(shapes.values(), own)
        self.tensors = nn.ParameterList(value.mul_(1e-2) for value in made)

    def again(self) -> Replayed:
        """Make a model of the same values in the same memory with separate gradients, for another exchange of them."""
        other = Replayed({})
        other.pause = self.pause
        other.tensors = nn.ParameterList(nn.Parameter(each.detach()) for each in self.tensors)
        return other

    def forward(self, x: Tensor) -> Tensor:
        """Return a scalar; ``x`` must be one that needs a gradient."""
        for param in self.tensors:
            x = Emit.apply(x, param, self.pause)  # type: ignore[no-untyped-call]
        return x


def _normal(shapes: Iterable[tuple[int, ...]], own: torch.Generator) -> Iterator[Tensor]:
    for shape in shapes:
        yield torch.randn(shape, generator=own)


def _as_trained(shapes: Iterable[tuple[int, ...]], own: torch.Generator) -> Iterator[Tensor]:
    """Make gradients layer by layer, from a signal that all workers share and noise of this worker alone."""
    shared = torch.Generator().manual_seed(2**32)
    for shape in shapes:
        scale = float(torch.randn((), generator=shared).mul(LAYERS).exp())
        signal, noise = (_heavy(shape, each) for each in (shared, own))
        yield signal.mul_(scale * SIGNAL**0.5).add_(noise, alpha=scale * (1 - SIGNAL) ** 0.5)


def _heavy(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Normal random values, each with a different standard deviation."""
    spread = torch.randn(shape, generator=generator).mul_(TAIL).exp_()
    return spread.mul_(torch.randn(shape, generator=generator))


class Emit(torch.autograd.Function):
    """A function that returns its scalar; in the backward pass the parameter gets its own value as gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, param: Tensor, pause: float) -> Tensor:
        ctx.param, ctx.pause = param, pause
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        if ctx.pause:
            time.sleep(ctx.pause)
        # A copy: DDP lays the mean into what autograd took for the gradient, and ranks would become alike.
        return grads[0], ctx.param.detach().clone(), None


def exchange(plan: ReplayPlan, contestant: Contestant) -> Result:
    """Make the steps of one method on each worker."""
    shapes = models.facts(plan.model, small=plan.small).shapes
    replayed = Replayed(shapes, plan.compute, dist.get_rank(), plan.gradients)
    model = wrapped(replayed, contestant)
    state = attached(model, contestant)
    steered, log = isinstance(contestant.compressor, str), DecisionLog()

    def steps(count: int, made: int = 0) -> list[float]:
        seconds = []
        for number in range(made, made + count):
            seconds.append(time_exchange(model))
            log.note(number + 1, None if state is None else state.exchange)
        return seconds

    try:
        warm = steps(DECIDING if steered else WARM_UP)
        count = agreed(warm[-1], plan.steps, plan.budget, _LEAST_STEPS)
        before, sent = _snapshot(state), _interface(plan)
        seconds = steps(count, len(warm))
        after, sent_after = _snapshot(state), _interface(plan)
    finally:
        if state is not None:
            state.close()
    spent = {name: (after[name] - before[name]) / count for name in after}
    return Result(
        seconds,
        bytes_sent=spent.pop("bytes_sent", None),
        ratio=None if state is None else state.metrics()["total_ratio"],
        phases=spent or None,
        interface_bytes=None if sent is None else ((sent_after or 0) - sent) / count,
        digest=digest_of(replayed),
        decisions=log.entries if steered else None,
    )


def _alone(contestant: Contestant) -> bool:
    """Return whether a contestant needs one bucket: torch's PowerSGD waits in callbacks, which
    hangs on Gloo with more.
    """
    return contestant.compressor is None and contestant.label == "powersgd"


def wrapped(replayed: Replayed, contestant: Contestant) -> DistributedDataParallel:
    """Wrap the model in DDP; workers keep their own values, which are gradients and slow to broadcast."""
    whole = 1 + (sum(param.nbytes for param in replayed.tensors) >> 20)
    return DistributedDataParallel(replayed, init_sync=False, bucket_cap_mb=whole if _alone(contestant) else None)


def attached(model: DistributedDataParallel, contestant: Contestant) -> GradwireState | None:
    """Attach a contestant to the model's gradients and return its state; None if torch does the exchange.

    Raises:
        ConfigError: no compressor, and no hook of that name.
    """
    if contestant.compressor is not None:
        return compress_ddp(model, contestant.compressor, **contestant.options)
    require(contestant.label in HOOKS, "hook", f"one of {', '.join(HOOKS)}", contestant.label)
    if contestant.label != "ddp":
        TorchHook(model, {"name": contestant.label})
    return None


def time_exchange(model: DistributedDataParallel) -> float:
    """Time one backward pass, which ends with the mean; all workers begin together."""
    model.zero_grad(set_to_none=True)
    dist.barrier()
    start = time.perf_counter()
    model(torch.zeros((), requires_grad=True)).backward()
    return time.perf_counter() - start


def agreed(once: float, most: int, budget: float, least: int, device: str = "cpu") -> int:
    """Agree on the number of steps that a budget of seconds allows the slowest worker, which takes ``once`` seconds for
    one; over a tensor on ``device``.
    """
    slowest = torch.tensor(once, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return min(most, max(least, int(budget / slowest.item())))


def _snapshot(state: GradwireState | None) -> dict[str, float]:
    if state is None:
        return {}
    counted = state.metrics()
    return {
        "bytes_sent": counted["bytes_sent"],
        **{each: counted[f"{each}_seconds"] for each in ("encode", "communicate", "decode")},
    }


def _interface(plan: ReplayPlan) -> int | None:
    """The bytes that this worker's interface has sent; None on the loopback, which all workers share."""
    return None if plan.link == Link() else interface_bytes()


def digest_of(model: nn.Module) -> str:
    """A SHA-256 of the gradients, which are the same on all workers after an exchange."""
    return digest_of_tensors(param.grad for param in model.parameters() if param.grad is not None)
