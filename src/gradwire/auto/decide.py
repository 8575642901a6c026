"""The decision for each bucket: the shortest step whose error stays in the budget.

A step is the queue of ``timeline.py``. Of two sequences of choices up to a bucket, one that is neither earlier nor less
wrong can be left out, because all that follows grows with both. What is left is a frontier of times and errors, bucket
by bucket. It is thinned to some ``GRID`` sequences, so what is found may be a little longer than the shortest, and is
never above the budget. The cost is buckets x choices x ``GRID``, and does not grow with the number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.auto.timeline import Timeline

__all__ = ["Option", "Stage", "best", "exposed", "finish"]

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
        ready: seconds from the beginning of the step until its gradients are there, if no exchange holds up what
            computes them.
        options: one for each choice; None: it cannot be chosen here.
        blocking: true where what computes waits for this exchange.
        gathers: seconds of the gathers of weights before it, for which what computes waits.
        asked: time at which they are asked for, as ``ready``.
    """

    ready: float
    options: Sequence[Option | None]
    blocking: bool = False
    gathers: float = 0.0
    asked: float = 0.0

    def after(self, line: Timeline, seconds: float) -> Timeline:
        """The state after this bucket, whose exchange takes so long, and the gathers before it."""
        return line.gathered(self.asked, self.gathers).after(self.ready, seconds, blocking=self.blocking)


def exposed(stages: Sequence[Stage], seconds: Sequence[float], buffers: int | None = None) -> list[float]:
    """The seconds of each exchange in which what computes stands still, or has nothing more to do.

    The one thread that exchanges is busy then, so each such second belongs to one exchange, and their sum is what the
    step takes longer than without any.

    Args:
        stages: stages in their order; their options do not matter.
        seconds: seconds of each exchange.
        buffers: exchanges that may be under way while gradients are computed; None: any number.

    Example:
        >>> slow = [Stage(float(i), []) for i in range(3)]
        >>> exposed(slow, [3.0, 3.0, 3.0]), exposed(slow, [3.0, 3.0, 3.0], buffers=1)
        ([1.0, 3.0, 3.0], [2.0, 2.0, 3.0])
    """
    line, busy, still = Timeline(buffers=buffers), list[tuple[float, float]](), list[tuple[float, float]]()
    for stage, each in zip(stages, seconds, strict=True):
        then = stage.after(line, each)
        busy.append((then.now - each, then.now))
        if then.stood > line.stood:
            still.append((stage.ready + line.stood, stage.ready + then.stood))
        line = then
    if stages:
        still.append((stages[-1].ready + line.stood, line.now))
    return [sum(max(0.0, min(end, b) - max(begin, a)) for a, b in still) for begin, end in busy]


def finish(stages: Sequence[Stage], chosen: Sequence[int], buffers: int | None = None) -> float:
    """The time at which the last bucket is done with these options."""
    line = Timeline(buffers=buffers)
    for stage, place in zip(stages, chosen, strict=True):
        option = stage.options[place]
        assert option is not None
        line = stage.after(line, option.seconds)
    return line.now


def best(stages: Sequence[Stage], budget: float, rest: float = 0.0, buffers: int | None = None) -> list[int]:
    """Options to take: of all that keep the budget and are as fast as the fastest, those with the least error.

    Args:
        stages: stages in the order in which buckets are exchanged; the first option of each has no error.
        budget: largest sum of all errors, >= 0.
        rest: seconds of the step before the first bucket's beginning and after the last bucket is ready, which no
            option changes: what counts as fast is the whole step.
        buffers: exchanges that may be under way while gradients are computed; None: any number.

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
    front: list[_Way] = [(0.0, 0.0, (), Timeline(buffers=buffers))]
    for number, stage in enumerate(stages, 1):
        reached = list[_Way]()
        for spent, _, path, line in front:
            for place, option in enumerate(stage.options):
                if option is not None and spent + option.error <= budget:
                    made = stage.after(line, option.seconds)
                    # All that follows grows with both times. Their sum drops a way that is later now and would have
                    # been faster in the end, by more than 3 % in one of two hundred random cases.
                    late = made.now + (made.stood if number < len(stages) else 0.0)
                    reached.append((spent + option.error, late, (*path, place), made))
        front = _frontier(reached, budget)
    fastest = min(line.now for *_, line in front)
    last = stages[-1].ready if stages else 0.0
    allowed = fastest + ALIKE * (max(fastest, last) + rest)
    return list(next(path for _, _, path, line in front if line.now <= allowed or line.now <= last))


_Way = tuple[float, float, tuple[int, ...], Timeline]
"""The error of what was chosen so far, how late that makes what follows, what it is, and the state after it."""


def _frontier(reached: Sequence[_Way], budget: float) -> list[_Way]:
    """Options that are faster than all options with less error; of those with nearly the same error the fastest."""
    kept: list[_Way] = []
    for way in sorted(reached, key=lambda way: way[:3]):
        if kept and way[1] >= kept[-1][1]:
            continue
        if len(kept) > 1 and way[0] - kept[-2][0] < budget / GRID:
            kept[-1] = way
        else:
            kept.append(way)
    return kept
