"""How far keys are, as a worker counts: steps of all workers in sync, its own in async."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradwire.kvstore.server.members import Members, workers
from gradwire.kvstore.server.parts import StoredPart
from gradwire.kvstore.server.rules import Rules

__all__ = ["Progress"]


class Progress:
    """What counts as made, as there, and as too far ahead.

    Args:
        rules: how the server behaves.
        members: who is there.
    """

    def __init__(self, rules: Rules, members: Members) -> None:
        self.sync: bool | None = None
        """The kind of store; None until the first worker has said it."""
        self.staleness = rules.staleness
        self._rules, self._members = rules, members

    def version(self, part: StoredPart, rank: int) -> int:
        """The step up to which a worker's pushes are in the value."""
        return part.version if self.sync else part.last.get(rank, 0)

    def durable(self, part: StoredPart, rank: int) -> int:
        """The step up to which a worker need not keep its pushes."""
        if not self._rules.snapshots:
            return self.version(part, rank)
        return part.durable if self.sync else part.durable_of.get(rank, 0)

    def reached(self, rank: int, parts: Sequence[StoredPart]) -> tuple[int, int]:
        """The step up to which a worker's pushes of all of them are in the values, and need not be kept."""
        versions = (self.version(part, rank) for part in parts)
        return min(versions, default=0), min((self.durable(part, rank) for part in parts), default=0)

    def has_step(self, part: StoredPart, rank: int, step: int) -> bool:
        """Whether a worker's step is in the value, and not too far ahead of the others."""
        return self.version(part, rank) >= step and self.within_bound(part, step)

    def within_bound(self, part: StoredPart, step: int) -> bool:
        """Whether a worker that made so many steps of a key need not wait for the slowest."""
        if self.sync or self.staleness is None:
            return True
        return step - min((part.last.get(rank, 0) for rank in self._members.live), default=step) <= self.staleness

    def missing(self, part: StoredPart, rank: int, step: int) -> Callable[[], str]:
        """What a request waits for, in the words of the moment at which that is asked."""

        def text() -> str:
            made, live = self.version(part, rank), self._members.live
            if made < step:
                absent = live - part.pending.get(made + 1, {}).keys() if self.sync else {rank}
                return f"step {step} of {part.title} waits for {workers(absent or {rank})}"
            behind = [each for each in live if step - part.last.get(each, 0) > (self.staleness or 0)]
            return f"step {step} of {part.title} waits for {workers(behind)}, more than {self.staleness} steps behind"

        return text
