"""The ranks that are one worker of a meeting: the first of them asks at the place, and all hear its answer.

Invariants:
    * What depends on the moment at which one looks, such as whether a round is closed, is asked by the first rank
      alone. So the ranks take the same way through a round, whatever their clocks and connections do.
    * What each rank does for itself, such as to hang up the payload of its shard, ends with the question whether it
      went well on all of them: if it failed on one, all of them raise.

Failure modes:
    A rank that dies ends the others' wait for it, because its connections end. They raise, and the meeting goes on
    without this worker as without any that died.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from gradwire.errors import GroupError
from gradwire.transport.channel import Channel

__all__ = ["ALONE", "Crew"]

T = TypeVar("T")


class _Answer(NamedTuple):
    """The answer of the first rank to the others: a value, or an error."""

    value: Any
    error: Exception | None = None


class Crew:
    """The ranks of one worker.

    Each call is a collective: all ranks make the same ones, in the same order, from one thread at a time.

    Args:
        lines: channels of this rank over the dimensions of their mesh, on the host; none if it is alone.
        at: coordinates of this rank in the mesh.

    Attributes:
        first: true on the rank that asks.
        place: end of the names of this rank's payloads at the meeting place; empty if it is alone.
    """

    def __init__(self, lines: Sequence[Channel] = (), at: Sequence[int] = ()) -> None:
        self._lines = list(lines)
        self.first = not any(at)
        self.place = "/" + ".".join(map(str, at)) if self._lines else ""
        self._asks = False

    @property
    def alone(self) -> bool:
        """Return whether the worker is this rank alone."""
        return not self._lines

    def lead(self, ask: Callable[[], T]) -> T:
        """Return on every rank the value of the function on the first; elsewhere it is not called.

        Raises:
            GroupError: another rank does not answer.
            Exception: the error of the function on the first rank.
        """
        # What it calls may ask in turn, and the others do not hear of that.
        if self.alone or self._asks:
            return ask()
        told = _Answer(None)
        if self.first:
            self._asks = True
            try:
                told = _Answer(ask())
            except Exception as error:
                told = _Answer(None, error)
            finally:
                self._asks = False
        # Along one dimension after the other: the first of each row has it before its row does.
        for line in self._lines:
            box = [told]
            try:
                dist.broadcast_object_list(box, group=line.group, group_src=0, device=torch.device("cpu"))
            except RuntimeError as error:
                raise GroupError(f"a rank of this worker does not answer: {error}") from error
            told = box[0]
        if told.error is not None:
            raise told.error
        found: T = told.value
        return found

    def together(self, do: Callable[[], T]) -> T:
        """Call the function on every rank; return its value here.

        Raises:
            GroupError: another rank failed, or does not answer.
            Exception: its error here.
        """
        if self.alone:
            return do()
        try:
            found = do()
        except Exception:
            self.anywhere(True)
            raise
        if self.anywhere(False):
            raise GroupError("another rank of this worker failed: its own error has the reason")
        return found

    def anywhere(self, so: bool) -> bool:
        """Return whether it is so on any of the ranks."""
        return bool(self._reduced(float(so), "max"))

    def total(self, number: float) -> float:
        """Return the sum of the numbers of all ranks."""
        return self._reduced(number, "sum")

    def _reduced(self, number: float, how: str) -> float:
        found = torch.full((1,), number, dtype=torch.float64)
        for line in self._lines:
            line.all_reduce(found, how)
        return float(found)


ALONE = Crew()
"""A worker of one rank."""
