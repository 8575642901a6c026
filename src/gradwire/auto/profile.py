"""Profile of a step without an exchange: when the backward pass completes each bucket, and how long the step is.

Seconds count from the beginning of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch

from gradwire.engine.plan import Named
from gradwire.errors import require

__all__ = ["BucketProfile", "Profile"]


@dataclass(frozen=True)
class BucketProfile:
    """A bucket: parameters that travel together.

    Args:
        params: names and shapes, in the order of the bucket.
        ready: seconds from the beginning of the step until its gradients are there.
    """

    params: tuple[Named, ...]
    ready: float

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
            BucketProfile(tuple((name, tuple(shape)) for name, shape in each["params"]), each["ready"])
            for each in fields["buckets"]
        ]
        return cls(tuple(buckets), fields["seconds"], fields["busy"])

    def lasting(self, seconds: float, *, busy: bool = False) -> Self:
        """The same buckets in a step of another length, as on another processor: all times are scaled in proportion."""
        factor = seconds / self.seconds if self.seconds else 0.0
        buckets = tuple(BucketProfile(each.params, min(each.ready * factor, seconds)) for each in self.buckets)
        return type(self)(buckets, seconds, busy)
