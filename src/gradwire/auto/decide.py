"""The decision for each bucket: the shortest step whose error stays in the budget.

Law: one thread works the buckets off in their order, so bucket b is done at

    f(b) = max(f(b - 1), ready(b)) + seconds(b)

and the step is over when the last one is. Of two ways to come to a bucket, one that is neither earlier nor less wrong
can be left out, for all that follows grows with both. So what is left is a frontier of times and errors, bucket by
bucket. It is thinned to some ``GRID`` ways, so what is found may be a little longer than the shortest, and never above
the budget. The cost is buckets x choices x ``GRID``, and does not grow with the number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Option", "Stage", "best", "finish"]

GRID = 64
"""Ways that are kept for each bucket, about: of those whose errors differ by less than the budget over this, one."""

ALIKE = 0.01
"""Steps whose lengths differ by less than this share are told apart by their errors."""


@dataclass(frozen=True)
class Option:
    """The effects of a choice on a bucket.

    Args:
        seconds: seconds that the communication thread is busy with the bucket.
        error: error that the choice adds, in the unit of the budget, >= 0.
    """

    seconds: float
    error: float


@dataclass(frozen=True)
class Stage:
    """A bucket, with the options for it.

    Args:
        ready: seconds from the beginning of the step until its gradients are there.
        options: one for each choice; None: it cannot be chosen here.
    """

    ready: float
    options: Sequence[Option | None]


def finish(stages: Sequence[Stage], chosen: Sequence[int]) -> float:
    """The time at which the last bucket is done with these options."""
    now = 0.0
    for stage, place in zip(stages, chosen, strict=True):
        option = stage.options[place]
        assert option is not None
        now = max(now, stage.ready) + option.seconds
    return now


def best(stages: Sequence[Stage], budget: float, rest: float = 0.0) -> list[int]:
    """Options to take: of all that keep the budget and are as fast as the fastest, those with the least error.

    Args:
        stages: stages in the order in which buckets are exchanged; the first option of each has no error.
        budget: largest sum of all errors, >= 0.
        rest: seconds of the step before the first bucket's beginning and after the last bucket is ready, which no
            option changes: what counts as fast is the whole step.

    Returns:
        A place in the options of each bucket.

    Example:
        >>> slow, fast = Option(1.0, 0.0), Option(0.1, 0.2)
        >>> best([Stage(0.0, [slow, fast]), Stage(5.0, [slow, fast])], budget=1.0)  # The first one is hidden.
        [0, 1]
        >>> best([Stage(0.0, [slow, fast]), Stage(0.5, [slow, fast])], budget=1.0)
        [1, 1]
        >>> best([Stage(0.0, [slow, fast]), Stage(0.5, [slow, fast])], budget=0.25)  # Not enough for both.
        [0, 1]
    """
    front: list[_Way] = [(0.0, 0.0, ())]
    for stage in stages:
        reached = [
            (spent + option.error, max(now, stage.ready) + option.seconds, (*path, place))
            for spent, now, path in front
            for place, option in enumerate(stage.options)
            if option is not None and spent + option.error <= budget
        ]
        front = _frontier(reached, budget)
    fastest = min(now for _, now, _ in front)
    last = stages[-1].ready if stages else 0.0
    allowed = fastest + ALIKE * (max(fastest, last) + rest)
    return list(next(path for _, now, path in front if now <= allowed or now <= last))


_Way = tuple[float, float, tuple[int, ...]]
"""The error of what was chosen so far, when that is done, and what it is."""


def _frontier(reached: Sequence[_Way], budget: float) -> list[_Way]:
    """Options that are faster than all options with less error; of those with nearly the same error the fastest."""
    kept: list[_Way] = []
    for way in sorted(reached):
        if kept and way[1] >= kept[-1][1]:
            continue
        if len(kept) > 1 and way[0] - kept[-2][0] < budget / GRID:
            kept[-1] = way
        else:
            kept.append(way)
    return kept
