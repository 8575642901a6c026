"""Profile of a step: when the backward pass completes each bucket, and how long a step takes without any exchange.

Invariants:
    A profile is measured under DistributedDataParallel with a hook that returns at once, so buckets, their order and
    the copying into and out of them are those of training. Seconds count from the beginning of the step.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gradwire.engine.plan import Named
from gradwire.errors import ConfigError, require
from gradwire.frontends.setup import in_memory
from gradwire_lab.bench.buckets import bucket_indices

__all__ = ["BucketProfile", "Profile", "StepProfiler", "Typical", "assigned", "middle", "profile_step", "shortest"]

_WARM_UP = 2
"""Steps before those that count: DDP rebuilds its buckets after the first."""

_FEWEST = 2
"""Steps that are profiled at least: DDP sorts its buckets anew after the first."""


@dataclass(frozen=True)
class BucketProfile:
    """A bucket: parameters that travel together.

    Args:
        params: names and shapes, in the order of the bucket.
        ready: seconds from the beginning of the step until its gradients are there.
        itemsize: bytes of an element as DDP sends it.
    """

    params: tuple[Named, ...]
    ready: float
    itemsize: int = 4

    @property
    def numel(self) -> int:
        """The number of elements."""
        return sum(torch.Size(shape).numel() for _, shape in self.params)


@dataclass(frozen=True)
class Profile:
    """One worker's step without an exchange.

    Args:
        buckets: buckets in the order in which they are exchanged.
        seconds: seconds of the whole step.
        busy: the processor that encodes computes the gradients too, as in training on CPUs.

    Raises:
        ConfigError: no bucket, or times that do not increase.
    """

    buckets: tuple[BucketProfile, ...]
    seconds: float
    busy: bool = True

    def __post_init__(self) -> None:
        require(bool(self.buckets), "Profile.buckets", "at least one", self.buckets)
        times = [0.0, *(bucket.ready for bucket in self.buckets), self.seconds]
        require(times == sorted(times), "Profile.seconds", "times that do not decrease", times)

    @property
    def numel(self) -> int:
        """The number of elements of all buckets."""
        return sum(bucket.numel for bucket in self.buckets)

    def as_dict(self) -> dict[str, Any]:
        """Return the profile for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of ``as_dict``, also after JSON."""
        buckets = [
            replace(BucketProfile(**each), params=tuple((name, tuple(shape)) for name, shape in each["params"]))
            for each in fields["buckets"]
        ]
        return cls(tuple(buckets), fields["seconds"], fields["busy"])

    def lasting(self, seconds: float) -> Self:
        """The same buckets in a step of another length, on another processor: all times are scaled in proportion."""
        factor = seconds / self.seconds if self.seconds else 0.0
        buckets = tuple(replace(each, ready=min(each.ready * factor, seconds)) for each in self.buckets)
        return type(self)(buckets, seconds, busy=False)


class Typical(Protocol):
    """One profile made of several steps: ``middle`` or ``shortest``."""

    def __call__(self, steps: Sequence[Profile], *, busy: bool) -> Profile: ...


def assigned(shapes: Sequence[Named], seconds: float) -> Profile:
    """The buckets that DDP would make of float32 parameters whose gradients come evenly, from the last to the first.

    Args:
        shapes: names and shapes of the parameters, in the order of the network.
        seconds: seconds until the last gradient is there, on another processor than the one that encodes.
    """
    order = list(reversed(shapes))
    indices = bucket_indices([shape for _, shape in order])
    buckets = [
        BucketProfile(tuple(order[i] for i in each), min(seconds, seconds * (max(each) + 1) / len(order)))
        for each in indices
    ]
    return Profile(tuple(buckets), seconds, busy=False)


class StepProfiler:
    """A hook for DDP that notes when each bucket came, and what else was measured of a step.

    Args:
        model: wrapped. Gradients stay as they are: no other worker hears of them.
        clock: seconds.
    """

    def __init__(self, model: DistributedDataParallel, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        named = model.module.named_parameters()
        self._names = {id(param): (name, tuple(in_memory(param).shape)) for name, param in named}
        self._begun = 0.0
        self._seen: list[BucketProfile] = []
        self.steps: list[Profile] = []

    @property
    def handed_out(self) -> bool:
        """Return whether a bucket came since the step began."""
        return bool(self._seen)

    @property
    def begun(self) -> bool:
        """Return whether a step is under way."""
        return self._begun > 0

    def begin(self) -> None:
        """Begin a step; buckets of one that was not ended are forgotten."""
        self._seen, self._begun = [], self._clock()

    def end(self) -> None:
        """End the step."""
        if self._seen:
            self.steps.append(Profile(tuple(self._seen), self._clock() - self._begun))

    def __call__(self, state: Any, bucket: dist.GradBucket) -> Future[torch.Tensor]:  # type: ignore[name-defined]
        """Note a bucket."""
        if bucket.buffer().is_cuda:
            # Kernels are only launched so far: it is ready when they have run.
            torch.cuda.current_stream(bucket.buffer().device).synchronize()
        params = tuple(self._names[id(param)] for param in bucket.parameters())
        self._seen.append(BucketProfile(params, self._clock() - self._begun, bucket.buffer().element_size()))
        future: Future[torch.Tensor] = Future()
        future.set_result(bucket.buffer())
        return future

    def profile(self, warm_up: int, *, busy: bool = True, typical: Typical | None = None) -> Profile:
        """The typical profile of the steps that have the last one's buckets, without the first ``warm_up`` steps.

        Args:
            warm_up: steps that do not count.
            busy: see ``Profile``.
            typical: ``middle``, or ``shortest`` where other work on the machine must not count; None: ``middle``.

        Raises:
            ConfigError: no step is left.
        """
        counted = self.steps[warm_up:]
        require(bool(counted), "steps", f"more than {warm_up}, which warm up", len(self.steps))
        return (typical or middle)([step for step in counted if same(step, counted[-1])], busy=busy)


def same(one: Profile, other: Profile) -> bool:
    return [bucket.params for bucket in one.buckets] == [bucket.params for bucket in other.buckets]


def shortest(steps: Sequence[Profile], *, busy: bool) -> Profile:
    """The step that took the least time, because the others depend on what else the machine did."""
    least = min(steps, key=lambda step: step.seconds)
    return Profile(least.buckets, least.seconds, busy)


def middle(steps: Sequence[Profile], *, busy: bool) -> Profile:
    """The medians of all times; times that increase within every step have medians that increase too."""
    columns = zip(*(step.buckets for step in steps), strict=True)
    buckets = tuple(replace(column[0], ready=median(each.ready for each in column)) for column in columns)
    return Profile(buckets, median(step.seconds for step in steps), busy)


def profile_step(
    model: DistributedDataParallel,
    step: Callable[[], object],
    steps: int,
    *,
    before: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
    budget: float = math.inf,
    typical: Typical | None = None,
) -> Profile:
    """Run ``step`` on a model that has no hook yet, and return its profile.

    Args:
        model: wrapped model on any group; its workers do not exchange anything.
        step: forward and backward.
        steps: number of steps that count, after two that warm up.
        before: called before each step, outside of the measurement.
        clock: seconds; see ``machine.crowded``.
        budget: seconds after which no further step is begun, if two were made: one that warms up, one that counts.
        typical: see ``StepProfiler.profile``.

    Raises:
        ConfigError: the model hands out no gradients.
    """
    profiler = StepProfiler(model, clock)
    model.register_comm_hook(None, profiler.__call__)
    begun = time.perf_counter()
    for made in range(_WARM_UP + steps):
        if made >= _FEWEST and time.perf_counter() - begun > budget:
            break
        before()
        profiler.begin()
        step()
        profiler.end()
    if not profiler.steps:
        raise ConfigError("model must hand out gradients in a step, got none")
    return profiler.profile(min(_WARM_UP, len(profiler.steps) - 1), typical=typical)
