"""The queue of a step: one thread exchanges the buckets in their order, while another computes their gradients.

Bucket b is done at

    f(b) = max(f(b - 1), ready(b)) + seconds(b)

and the step is over when the last one is. The thread that computes may stand still for exchanges, because it waits for
one of them, or because no more may be under way. Then all later buckets are ready so much later.

``auto`` predicts its steps with this model and reads measured ones with it, and the advisor predicts with it before a
training begins.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Timeline"]


class Timeline(NamedTuple):
    """The state of the two threads, one that computes and one that exchanges, after some buckets.

    Args:
        done: times at which the last exchanges are done, as many as ``buffers``, and one at least.
        stood: seconds for which what computes has stood still, or by which it was slowed down.
        buffers: exchanges that may be under way while it goes on, >= 1; None: any number.

    In its methods a bucket is ``ready`` when its gradients are there if nothing stands still, and ``blocking`` where
    what computes waits for its exchange.

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

    def start(self, ready: float) -> float:
        """Return the time at which the exchange of one more bucket begins."""
        return max(self._there(ready), self.now)

    def gathered(self, asked: float, seconds: float) -> Timeline:
        """Return the state after weights were gathered, for which what computes waits.

        Args:
            asked: time at which it asks for them if nothing stands still.
            seconds: seconds of the gathers on a link that nothing else uses; 0: nothing was gathered.
        """
        return self.after(asked, seconds, blocking=True) if seconds > 0 else self

    def after(self, ready: float, seconds: float, *, blocking: bool = False) -> Timeline:
        """Return the state after one more bucket, whose exchange takes so many seconds."""
        return self.ended(ready, self.start(ready) + seconds, blocking=blocking)

    def ended(self, ready: float, done: float, *, blocking: bool = False, slowed: float = 0.0) -> Timeline:
        """Return the state after a bucket whose exchange is done at a time.

        Args:
            done: time at which its exchange is done.
            slowed: seconds by which the exchange slows down what computes beside it.
        """
        stood = (done if blocking else self._there(ready)) - ready + slowed
        if self.buffers is None or self.buffers == 1:
            return Timeline((done,), stood, self.buffers)
        return Timeline((*self.done, done)[-self.buffers :], stood, self.buffers)

    def _there(self, ready: float) -> float:
        """The time at which a bucket's gradients are there, after what computes has stood still for those before."""
        there = ready + self.stood
        if self.buffers is not None and len(self.done) >= self.buffers:
            there = max(there, self.done[-self.buffers])
        return there
