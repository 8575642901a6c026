"""Uncompressed means: of small tensors together, of excluded ones, and of everything during a dense warm-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from gradwire import ops
from gradwire.group.channel import Channel
from gradwire.group.part import nonfinite
from gradwire.types import State

__all__ = ["CarriedDense", "DenseMean", "DenseSession", "is_carried", "joined"]

CARRIED = 2**16
"""Elements up to which they travel with payloads: they wait for the encoding, and more better travel meanwhile."""


def is_carried(numel: int, world: int) -> bool:
    """Return whether so many uncompressed elements of a bucket travel with its payloads, if every rank gets these.

    Between two ranks that is as many bytes as their sum, and a message less; between more it would be more bytes.

    Args:
        numel: elements, >= 0.
        world: ranks, >= 1.

    >>> is_carried(1000, 2), is_carried(1000, 3), is_carried(10**6, 2)
    (True, False, False)
    """
    return world == 2 and 0 < numel <= CARRIED


class DenseSession:
    """A session of one all-reduce over ranges of a flat gradient; a single range is summed in place.

    Args:
        ranges: ranges of the flat gradient.
        advised: states with the wishes of this rank's compressors ("advice"); their mean over the ranks ("agreed")
            travels in the same message.
    """

    def __init__(
        self, ranges: Sequence[tuple[int, int]], channel: Channel, device: torch.device, advised: Sequence[State] = ()
    ) -> None:
        self.ranges, self.channel, self.advised = joined(ranges), channel, advised
        self.wishes = sum(state["advice"].numel() for state in advised)
        packed = sum(hi - lo for lo, hi in self.ranges) if len(self.ranges) > 1 or self.wishes else 0
        self.buffer = torch.zeros(packed + self.wishes, dtype=torch.float32, device=device)

    def begin(self, flat: Tensor) -> DenseMean:
        """Start to average the ranges over the ranks, in place. Meanwhile other ranges of ``flat`` may be worked on."""
        views = [flat[lo:hi] for lo, hi in self.ranges]
        if not self.buffer.numel():
            packed = views[0] if views else self.buffer
            return DenseMean(packed, partial(self._finish, packed, [], self._begin(packed)))
        torch.cat([*views, *(state["advice"] for state in self.advised)], out=self.buffer)
        wait = self._begin(self.buffer)
        return DenseMean(self.buffer[: len(self.buffer) - self.wishes], partial(self._finish, self.buffer, views, wait))

    def _begin(self, packed: Tensor) -> Callable[[], None]:
        return self.channel.begin_all_reduce(packed.mul_(1.0 / self.channel.world))

    def _finish(self, packed: Tensor, views: list[Tensor], wait: Callable[[], None]) -> None:
        wait()
        if views or self.wishes:
            targets = [*views, *(state["agreed"] for state in self.advised)]
            torch._foreach_copy_(targets, list(torch.split(packed, [target.numel() for target in targets])))


class CarriedDense(DenseSession):
    """A session that carries the ranges in the messages of another one that every rank gets, without any of its own.

    Args:
        rows: room in those messages for all elements and wishes, float32 of shape (W, elements).
    """

    def __init__(
        self,
        ranges: Sequence[tuple[int, int]],
        channel: Channel,
        device: torch.device,
        advised: Sequence[State],
        rows: Tensor,
    ) -> None:
        super().__init__(ranges, channel, device, advised)
        self.rows, self.buffer = rows, torch.zeros(rows.size(1), dtype=torch.float32, device=device)

    def _begin(self, packed: Tensor) -> Callable[[], None]:
        torch.mul(packed, 1.0 / self.channel.world, out=self.rows[self.channel.rank])

        def arrive() -> None:
            torch.sum(self.rows, 0, out=packed)

        return arrive


class DenseMean:
    """An uncompressed mean on its way: a call waits for it, and returns whether it has a value that is not finite.

    Args:
        packed: buffer in which the mean will be.
        finish: waits for it, and puts it where it belongs.
    """

    def __init__(self, packed: Tensor, finish: Callable[[], None]) -> None:
        self._packed, self._arrive = packed, cache(finish)
        self._bad: Tensor | None = None

    def __call__(self) -> Tensor:
        self._arrive()
        self._bad = nonfinite(self._packed) if self._bad is None else self._bad
        return self._bad

    def flag(self, status: Tensor) -> None:
        """Wait, and set bit 0 of ``status``, int32 of one element, if a value is not finite."""
        self._arrive()
        ops.nonfinite(self._packed, status)


def joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join neighbouring ranges to one."""
    out: list[tuple[int, int]] = []
    for lo, hi in ranges:
        if out and out[-1][1] == lo:
            out[-1] = (out[-1][0], hi)
        elif hi > lo:
            out.append((lo, hi))
    return out
