"""The decision for each bucket: the shortest step whose error stays in the budget.

Law: one thread works the buckets off in their order, so bucket b is done at

    f(b) = max(f(b - 1), ready(b)) + seconds(b)

and the step is over when the last one is. Where what computes the gradients stands still for exchanges, because it
waits for one of them, or because as many as may be under way are, all that follows is ready so much later. Of two ways
to come to a bucket, one that is neither earlier nor less wrong can be left out, for all that follows grows with both.
So what is left is a frontier of times and errors, bucket by bucket. It is thinned to some ``GRID`` ways, so what is
found may be a little longer than the shortest, and never above the budget. The cost is buckets x choices x ``GRID``,
and does not grow with the number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Option", "Stage", "Timeline", "best", "exposed", "finish"]

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
    """

    ready: float
    options: Sequence[Option | None]
    blocking: bool = False


class Timeline(NamedTuple):
    """The state of the two threads, one that computes and one that exchanges, after some buckets.

    Args:
        done: times at which the last exchanges are done, as many as ``buffers``, and one at least.
        stood: seconds for which what computes has stood still.
        buffers: exchanges that may be under way while it goes on, >= 1; None: any number.

    Example:
        >>> line = Timeline(buffers=1)
        >>> for ready in (0.0, 1.0, 2.0):
        ...     line = line.after(ready, 3.0)
        >>> line.now, line.stood
        (9.0, 4.0)
    """

    done: tuple[float, ...] = ()
    stood: float = 0.0
    buffers: int | None = None

    @property
    def now(self) -> float:
        """The time at which the last exchange is done."""
        return self.done[-1] if self.done else 0.0

    def after(self, ready: float, seconds: float, *, blocking: bool = False) -> Timeline:
        """Return the state after one more bucket.

        Args:
            ready: time at which its gradients are there if nothing stands still.
            seconds: seconds of its exchange.
            blocking: true where what computes waits for it.
        """
        there = ready + self.stood
        if self.buffers is not None and len(self.done) >= self.buffers:
            there = max(there, self.done[-self.buffers])
        done = max(there, self.now) + seconds
        stood = (done if blocking else there) - ready
        if self.buffers is None or self.buffers == 1:
            return Timeline((done,), stood, self.buffers)
        return Timeline((*self.done, done)[-self.buffers :], stood, self.buffers)


def exposed(stages: Sequence[Stage], seconds: Sequence[float], buffers: int | None = None) -> list[float]:
    """The seconds of each exchange in which what computes stands still, or has nothing more to do.

    Law: the one thread that exchanges is busy then, so each such second belongs to one exchange, and their sum is what
    the step takes longer than without any.

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
        then = line.after(stage.ready, each, blocking=stage.blocking)
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
        line = line.after(stage.ready, option.seconds, blocking=stage.blocking)
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
                    made = line.after(stage.ready, option.seconds, blocking=stage.blocking)
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
