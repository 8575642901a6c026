"""Rounds of messages: what a strategy says that it sends, and what a link is asked the seconds of."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Kind", "Round", "ring", "to_all"]

Kind = Literal["exchange", "all_reduce", "broadcast", "hosts", "local"]


class Round(NamedTuple):
    """A round of messages that all workers send at the same time and wait for.

    Attributes:
        kind: pattern of the messages; "hosts" and "local" are rounds of two levels, between and inside hosts.
        sent: bytes that the busiest worker hands to its link; for "hosts", bytes that the busiest host sends.
        received: bytes that the busiest worker, or host, gets.
    """

    kind: Kind
    sent: float
    received: float

    @property
    def nbytes(self) -> float:
        """The bytes that the link needs time for: it is full duplex."""
        return max(self.sent, self.received)


def ring(nbytes: float, workers: int) -> Round:
    """The round of a sum over a ring: 2 (W-1)/W of its bytes."""
    moved = 2 * (workers - 1) * nbytes / workers
    return Round("all_reduce", moved, moved)


def to_all(nbytes: float, workers: int, kind: Kind = "exchange") -> Round:
    """The round in which every worker sends a message of so many bytes to every other."""
    return Round(kind, (workers - 1) * nbytes, (workers - 1) * nbytes)
