"""The ranks of one worker, an island: one of them asks for all, such as at a meeting, and all decide alike.

Invariants:
    * What depends on the moment at which one looks, such as whether a round is closed, is asked by the first rank
      alone. So the ranks take the same way through a round, whatever their clocks and connections do.
    * What each rank does for itself, such as to hang up the payload of its shard, ends with the question whether it
      went well on all of them: if it failed on one, all of them raise.

Failure modes:
    A rank that dies ends the wait of those that are connected to it, because its connections end. They raise, and tell
    the ranks of their own rows; the meeting goes on without this worker as without any that died. A rank that stays and
    does not answer is waited for as long as the first rank may wait at the place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from gradwire.errors import GroupError, require
from gradwire.notices import log
from gradwire.transport.channel import Channel

__all__ = ["ALONE", "HOST", "Crew"]

T = TypeVar("T")

HOST = torch.device("cpu")


class _Answer(NamedTuple):
    """The answer of the first rank to the others: a value, or an error."""

    value: Any
    error: Exception | None = None


class Crew:
    """The ranks of one worker.

    Each call is a collective: all ranks make the same ones, in the same order, from one thread at a time.

    Args:
        lines: channel of this rank along each dimension of their mesh, with the first rank on it, as the default group
            counts; none if this rank is alone.
        at: coordinates of this rank in the mesh.
        device: device of the numbers that they send; what the first rank tells the others goes through the host.

    Attributes:
        first: true on the rank that asks.
        place: end of the names of this rank's payloads at the meeting place; empty if it is alone.
    """

    def __init__(
        self, lines: Iterable[tuple[Channel, int]] = (), at: Sequence[int] = (), device: torch.device = HOST
    ) -> None:
        self._lines, self._device = list(lines), device
        self.first = not any(at)
        self.place = "/" + ".".join(map(str, at)) if self._lines else ""
        self._asks = False

    @property
    def channels(self) -> list[Channel]:
        """This rank's channel along each dimension."""
        return [line for line, _ in self._lines]

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
        answer = _Answer(None)
        if self.first:
            self._asks = True
            try:
                answer = _Answer(ask())
            except Exception as error:
                answer = _Answer(None, error)
            finally:
                self._asks = False
        # Along one dimension after the other: the first of each row has it before its row does.
        for line, first in self._lines:
            try:
                answer = line.share(answer, first)
            except GroupError as error:
                # Those who wait for this rank on its other lines hear of it, and wait no longer.
                answer = _Answer(None, error)
        if answer.error is not None:
            raise answer.error
        found: T = answer.value
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

    def compare(self, name: str, here: object) -> None:
        """Refuse values that are not the same on all ranks.

        Raises:
            ConfigError: the value here is not that of the first rank.
            GroupError: another rank has another value than the first.
        """
        first = self.lead(lambda: here)
        allowed = f"on all ranks of a worker that of the first, {first}"
        self.together(lambda: require(here == first, name, allowed, here))

    def anywhere(self, so: bool) -> bool:
        """Return whether it is so on any of the ranks."""
        return so if self.alone else bool(self.largest(so))

    def largest(self, number: float) -> float:
        """Return the largest of the numbers of all ranks."""
        return self._reduced(number, "max")

    def total(self, number: float) -> float:
        """Return the sum of the numbers of all ranks."""
        return number if self.alone else self._reduced(number, "sum")

    def warn(self, text: str, *values: object) -> None:
        """Log a warning once for the whole worker; it is no collective."""
        if self.first:
            log.warning(text, *values)

    def _reduced(self, number: float, how: str) -> float:
        # The first rank alone would wait here for the others, which do not come.
        assert not self._asks, "the first rank asks for what all must be asked for"
        found, failed = torch.full((1,), number, dtype=torch.float64, device=self._device), list[GroupError]()
        for line, _ in self._lines:
            try:
                line.all_reduce(found, how)
            except GroupError as error:
                failed.append(error)
                # Those who wait for this rank on its other lines get a number that nobody gives.
                found = torch.full_like(found, math.inf)
        if failed:
            raise failed[0]
        if math.isinf(found):
            raise GroupError("a rank of this worker does not answer")
        return float(found)


ALONE = Crew()
"""A worker of one rank."""
