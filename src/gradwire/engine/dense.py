"""Uncompressed means: of small tensors together, of excluded ones, and of everything during a dense warm-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors.casts.ops import cast_add_decoded, cast_encode
from gradwire.engine.part import nonfinite
from gradwire.kernels import Pieces, Places
from gradwire.kernels.native import kernels as extension
from gradwire.transport.channel import Channel
from gradwire.vocabulary import State

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
        # On a CPU one call takes all ranges; elsewhere torch's own operations on lists do.
        self._at_once = device.type == "cpu" and extension is not None and bool(packed) and not self.wishes
        self._sizes = [hi - lo for lo, hi in self.ranges]
        self._places: Places | None = None
        self._packed = Pieces.of(torch.split(self.buffer, self._sizes)) if self._at_once else None
        self._nothing = DenseMean(torch.zeros(0, dtype=torch.float32, device=device), lambda: None)

    def begin(self, flat: Tensor) -> DenseMean:
        """Start to average the ranges over the ranks, in place. Meanwhile other ranges of ``flat`` may be worked on."""
        if not self.ranges and not self.wishes:
            return self._nothing
        if self._at_once:
            return self._begin_at_once(flat)
        views = [flat[lo:hi] for lo, hi in self.ranges]
        if not self.buffer.numel():
            packed = views[0] if views else self.buffer
            return DenseMean(packed, partial(self._finish, packed, [], self._begin(packed)))
        torch.cat([*views, *(state["advice"] for state in self.advised)], out=self.buffer)
        wait = self._begin(self.buffer)
        return DenseMean(self.buffer[: len(self.buffer) - self.wishes], partial(self._finish, self.buffer, views, wait))

    def _of(self, flat: Tensor) -> Tensor:
        """Return the ranges of ``flat`` as pieces."""
        if self._places is None or self._places.length != flat.numel():
            self._places = Places(flat.numel(), [lo for lo, _ in self.ranges], self._sizes)
        return cast(Tensor, Pieces(flat, self._places))

    def _begin_at_once(self, flat: Tensor) -> DenseMean:
        """Do ``begin`` with one call for all ranges."""
        pieces, packed = self._of(flat), cast(Tensor, self._packed)
        cast_encode(pieces, packed, 1.0 / self.channel.world)
        wait = self.channel.begin_all_reduce(self.buffer)

        def finish() -> None:
            wait()
            cast_encode(packed, pieces, 1.0)

        return DenseMean(self.buffer, finish)

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
        self._at_once = self._at_once or (device.type == "cpu" and extension is not None and not self.wishes)
        if self._at_once:
            self._packed = Pieces.of(torch.split(rows[channel.rank], self._sizes))
            self._arrived = cast(Tensor, Pieces.of(torch.split(rows, self._sizes, dim=1)))

    def _begin_at_once(self, flat: Tensor) -> DenseMean:
        pieces = self._of(flat)
        cast_encode(pieces, cast(Tensor, self._packed), 1.0 / self.channel.world)
        return DenseMean(pieces, partial(cast_add_decoded, self._arrived, pieces, 1.0, fresh=True))

    def _begin(self, packed: Tensor) -> Callable[[], None]:
        torch.mul(packed, 1.0 / self.channel.world, out=self.rows[self.channel.rank])

        # Nothing is waited for: the session that carries the rows calls this when it has received them.
        def arrive() -> None:
            # There are two rows, whose sum is the same in either order, so both ranks have the same bits.
            torch.sum(self.rows, 0, out=packed)

        return arrive


class DenseMean:
    """An uncompressed mean on its way: a call waits for it, and returns whether it has a value that is not finite.

    Args:
        packed: buffer in which the mean will be.
        finish: waits for it, and puts it where it belongs.
    """

    def __init__(self, packed: Tensor, finish: Callable[[], None]) -> None:
        self._packed, self._finish = packed, finish
        self._bad: Tensor | None = None
        self._arrived = False

    def _arrive(self) -> None:
        # Each session of a bucket asks, and the mean can be waited for only once.
        if not self._arrived:
            self._finish()
            self._arrived = True

    def __call__(self) -> Tensor:
        self._arrive()
        self._bad = nonfinite(self._packed) if self._bad is None else self._bad
        return self._bad

    def flag(self, status: Tensor) -> None:
        """Wait, and set bit 0 of ``status``, int32 of one element, if a value is not finite."""
        self._arrive()
        if self._packed.numel():
            kernels.nonfinite(self._packed, status)


def joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join neighbouring ranges to one."""
    out: list[tuple[int, int]] = []
    for lo, hi in ranges:
        if out and out[-1][1] == lo:
            out[-1] = (out[-1][0], hi)
        elif hi > lo:
            out.append((lo, hi))
    return out
