"""Note that ends a round: the workers that came, and those that take part in the next one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gradwire.errors import WireError

__all__ = ["Closed", "in_order", "order"]


@dataclass(frozen=True)
class Closed:
    """The note of a closed round.

    Args:
        came: bytes of each worker's payload, 0 if it came and sent nothing; and the process that handed it in.
        roster: names of the workers that are expected in the next round.
        need: names of those workers that wait for the state after this round.
        seen: announcements that were seen.
    """

    came: dict[str, tuple[int, str]]
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
            came = {str(name): (int(nbytes), str(token)) for name, (nbytes, token) in note["came"].items()}
            return cls(came, tuple(map(str, note["roster"])), tuple(map(str, note["need"])), int(note["seen"]))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            # Another process wrote the note, perhaps of another version, so it may have any form.
            raise WireError(f"a closed round is a note with came, roster, need and seen, got {note!r}") from error

    @property
    def sent(self) -> list[str]:
        """The workers whose payloads count, in the order in which they are summed."""
        return in_order(name for name, (nbytes, _) in self.came.items() if nbytes)

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
