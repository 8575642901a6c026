"""Gathers of weights, and what they leave of the link: under FSDP2 they share it with the reductions of gradients.

Why:
    While both travel each of them has a part of the link, so the seconds of the one and of the other add up to more
    than the link was busy. What counts for its rate is the time in which anything travelled:

        busy = length of the union of all times of gathers and reductions
        sharing = (busy - forward) / (reductions + gathers - forward)

    ``forward`` are the gathers of the forward pass, beside which nothing is reduced. In a model of one queue a gather
    or a reduction of the backward pass takes ``sharing`` times its seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["NO_GATHERS", "UNUSED", "GatheredWeights", "Gathers", "LinkUse", "WeightControl", "link_use", "sharing"]

LEAST_SHARE = 0.2
"""The least that sharing makes of a time: less is a mistake in measuring."""


@dataclass(frozen=True)
class Gathers:
    """The weights that were gathered since the bucket before, on this rank.

    Args:
        stalls: pauses of the thread that computes, each from one time to another.
        calls: number of gathers, the same on all ranks, as are the next four.
        numel: elements of this rank's shards.
        sent: bytes that this rank sent.
        plain: bytes that it would send uncompressed.
        coded: bytes that it would send in the method that may be chosen.
    """

    stalls: tuple[tuple[Any, Any], ...] = ()
    calls: int = 0
    numel: int = 0
    sent: float = 0.0
    plain: float = 0.0
    coded: float = 0.0


NO_GATHERS = Gathers()


@dataclass(frozen=True)
class GatheredWeights:
    """The gathers before a bucket in a window: the same numbers on all ranks.

    Args:
        seconds: seconds for which what computes stood still, of the rank that came last.
        calls: number of gathers.
        numel: elements of a rank's shards.
        sent: bytes that a rank sent.
        plain: bytes that it would send uncompressed.
        coded: bytes that it would send in the method that may be chosen.
    """

    seconds: float
    calls: float
    numel: float
    sent: float
    plain: float
    coded: float


@dataclass(frozen=True)
class LinkUse:
    """The seconds of a step in which a rank's link was in use.

    Args:
        busy: seconds in which anything travelled.
        gathers: seconds of all gathers, those in which gradients travelled, too, among them.
        forward: seconds of the gathers after the last reduction.
    """

    busy: float = 0.0
    gathers: float = 0.0
    forward: float = 0.0


UNUSED = LinkUse()


class WeightControl(Protocol):
    """The part of a frontend that gathers weights.

    Attributes:
        method: method that may be chosen for the weights, as a user writes it; None: nothing is chosen.
    """

    method: str | None

    def use(self, method: str | None) -> None:
        """Gather the weights with a method from the next forward pass on; None: uncompressed."""
        ...

    def link_use(self) -> LinkUse:
        """Return how the link was used since the last call."""
        ...


def link_use(reductions: Sequence[tuple[float, float]], gathers: Sequence[tuple[float, float]]) -> LinkUse:
    """Return how a link was used in a step.

    Args:
        reductions: times in which gradients travelled, each with its beginning and its end.
        gathers: the same for weights.

    >>> link_use([(0.0, 4.0)], [(1.0, 2.0), (3.0, 6.0), (7.0, 8.0)])
    LinkUse(busy=7.0, gathers=5.0, forward=1.0)
    """
    busy, until = 0.0, -float("inf")
    for begin, end in sorted([*reductions, *gathers]):
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    last = max((end for _, end in reductions), default=-float("inf"))
    lengths = [(begin, end - begin) for begin, end in gathers]
    return LinkUse(
        busy, sum(length for _, length in lengths), sum(length for begin, length in lengths if begin >= last)
    )


def sharing(use: LinkUse, reductions: float) -> float:
    """The factor between a time in which gathers and reductions share the link and the time of one alone.

    Args:
        reductions: seconds of all reductions in messages.

    >>> sharing(LinkUse(7.0, 5.0, 1.0), 4.0), sharing(LinkUse(), 0.0)
    (0.75, 1.0)
    """
    together = use.gathers - use.forward + reductions
    if together <= 0:
        return 1.0
    return min(1.0, max(LEAST_SHARE, (use.busy - use.forward) / together))
