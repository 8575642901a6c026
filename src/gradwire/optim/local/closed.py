"""Note that ends a round: the workers that came, and those that take part in the next one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradwire.errors import WireError

__all__ = ["Closed", "Handed", "in_order"]


class Handed(NamedTuple):
    """A worker's payload.

    Attributes:
        nbytes: its bytes, 0 if the worker came and sent nothing.
        token: the process that handed it in.
        weight: weight of its change in the mean, > 0.
    """

    nbytes: int
    token: str
    weight: float = 1.0

    @classmethod
    def read(cls, note: Any) -> Handed:
        """Read what a note says.

        Raises:
            ValueError: the weight is not a finite number > 0.
        """
        nbytes, token, *weight = note
        found = cls(int(nbytes), str(token), *map(float, weight))
        if not 0 < found.weight < math.inf:
            raise ValueError("a weight is a finite number > 0")
        return found


@dataclass(frozen=True)
class Closed:
    """The note of a closed round.

    Args:
        came: the payload of each worker.
        roster: names of the workers that are expected in the next round.
        need: names of those workers that wait for the state after this round.
        seen: announcements that were seen.
    """

    came: dict[str, Handed]
    roster: tuple[str, ...]
    need: tuple[str, ...]
    seen: int

    @classmethod
    def read(cls, note: Any) -> Closed:
        """Read what a note says.

        Raises:
            WireError: the note has another form.
        """
        try:
            came = {str(name): Handed.read(each) for name, each in note["came"].items()}
            return cls(came, tuple(map(str, note["roster"])), tuple(map(str, note["need"])), int(note["seen"]))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            # Another process wrote the note, perhaps of another version, so it may have any form.
            raise WireError(f"a closed round is a note with came, roster, need and seen, got {note!r}") from error

    @property
    def sent(self) -> list[str]:
        """The workers whose payloads count, in the order in which they are summed."""
        return in_order(name for name, handed in self.came.items() if handed.nbytes)

    @property
    def shares(self) -> list[float]:
        """The share that each of these payloads has in the mean, w_i / sum w, in the same order."""
        weights = [self.came[name].weight for name in self.sent]
        total = math.fsum(weights)
        return [weight / total for weight in weights]

    @property
    def speaker(self) -> str:
        """The worker that publishes the state."""
        return in_order(self.came)[0]


def order(name: str) -> tuple[int, str]:
    """The sort key by which numbers come first, as numbers.

    >>> sorted(["paris", "10", "9"], key=order)
    ['9', '10', 'paris']
    """
    return (int(name), "") if name.isdecimal() else (1 << 62, name)


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names by ``order``."""
    return sorted(names, key=order)
