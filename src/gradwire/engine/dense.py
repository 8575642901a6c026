"""The uncompressed mean: of small tensors together, of excluded ones, of all in a dense warm-up, of a sample.

It travels in an all-reduce of its own, or in the messages of a strategy that every rank gets. Three others are apart:

    Channel.begin_mean  averages what torch would average without a hook, in its own dtype and layout, sparse ones among
                        them. It is posted before the ranks have been compared, and many may be under way, because DDP
                        waits for a future of each bucket
    HostLanes           adds up over the ranks of a host, where the backend knows sums over whole groups alone, and
                        leaves each rank one lane of the sum
    torch's own         reduces to their owners what FSDP scatters uncompressed (``Channel.run_scatter``)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

__all__ = ["DenseSession", "is_carried", "joined"]

CARRIED = 2**16
"""Elements up to which they travel with payloads: they wait for the encoding, and more better travel meanwhile."""


def is_carried(numel: int, world: int) -> bool:
    """Return whether so many uncompressed elements of a bucket travel with its payloads, if every rank gets these.

    Between two ranks that is as many bytes as their sum, and a message less; between more it would be more bytes.

    >>> is_carried(1000, 2), is_carried(1000, 3), is_carried(10**6, 2)
    (True, False, False)
    """
    return world == 2 and 0 < numel <= CARRIED


class DenseSession:
    """The mean over the ranks of ranges of a flat gradient, in place, with that of the wishes of compressors.

    A single range is summed where it lies. Each session of a bucket may ask for the mean; the first waits for it.

    Args:
        ranges: ranges of the flat gradient.
        advised: states with the wishes of this rank's compressors ("advice"); their mean over the ranks ("agreed")
            travels in the same message.
        rows: room for all elements and wishes in messages that every rank gets, float32 of shape (W, elements). Then
            nothing is sent here: the session whose messages they are asks for the mean when it has received them.
    """

    def __init__(
        self,
        ranges: Sequence[tuple[int, int]],
        channel: Channel,
        device: torch.device,
        advised: Sequence[State] = (),
        rows: Tensor | None = None,
    ) -> None:
        self.ranges, self.channel, self.advised, self.rows = joined(ranges), channel, advised, rows
        self._sizes = [hi - lo for lo, hi in self.ranges]
        wishes = sum(state["advice"].numel() for state in advised)
        self.numel, self._dense = sum(self._sizes) + wishes, sum(self._sizes)
        self._in_place = rows is None and not wishes and len(self.ranges) == 1
        self.buffer = torch.zeros(0 if self._in_place else self.numel, dtype=torch.float32, device=device)
        # On a CPU one call takes all ranges; elsewhere torch's own operations on lists do.
        self._at_once = device.type == "cpu" and extension is not None and not wishes and not self._in_place
        self._places: Places | None = None
        if self._at_once and self.numel:
            sent = self.buffer if rows is None else rows[channel.rank]
            self._packed = cast(Tensor, Pieces.of(torch.split(sent, self._sizes)))
            self._arrived = cast(Tensor, self._packed if rows is None else Pieces.of(torch.split(rows, self._sizes, 1)))
        self._mean = self.buffer
        self._finish: Callable[[], None] | None = None
        self._bad: Tensor | None = None

    def begin(self, flat: Tensor) -> None:
        """Start to average the ranges over the ranks, in place. Meanwhile other ranges of ``flat`` may be worked on."""
        if self.numel:
            self._bad = None
            begin = self._begin_in_place if self._in_place else self._begin_at_once if self._at_once else self._begin
            self._finish = begin(flat, 1.0 / self.channel.world)

    def arrive(self) -> None:
        """Wait for the mean, unless that was done."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()

    def bad(self) -> Tensor:
        """Wait, and return whether a value is not finite, as a bool of one element."""
        self.arrive()
        if self._bad is None:
            self._bad = nonfinite(self._mean)
        return self._bad

    def flag(self, status: Tensor) -> None:
        """Wait, and set bit 0 of ``status``, int32 of one element, if a value is not finite."""
        if self.numel:
            self.arrive()
            kernels.nonfinite(self._mean, status)

    def end(self) -> None:
        """Let go of the gradient, which may be freed before the next step."""
        self._mean, self._bad = self.buffer, None

    def _begin_in_place(self, flat: Tensor, share: float) -> Callable[[], None]:
        self._mean = flat[self.ranges[0][0] : self.ranges[0][1]]
        return self.channel.begin_all_reduce(self._mean.mul_(share))

    def _begin_at_once(self, flat: Tensor, share: float) -> Callable[[], None]:
        """Do ``begin`` with one call for all ranges."""
        if self._places is None or self._places.length != flat.numel():
            self._places = Places(flat.numel(), [lo for lo, _ in self.ranges], self._sizes)
        pieces = cast(Tensor, Pieces(flat, self._places))
        cast_encode(pieces, self._packed, share)
        if self.rows is not None:
            self._mean = pieces
            return lambda: cast_add_decoded(self._arrived, pieces, 1.0, fresh=True)
        wait = self.channel.begin_all_reduce(self.buffer)

        def finish() -> None:
            wait()
            cast_encode(self._packed, pieces, 1.0)

        return finish

    def _begin(self, flat: Tensor, share: float) -> Callable[[], None]:
        views = [flat[lo:hi] for lo, hi in self.ranges]
        sent = self.buffer if self.rows is None else self.rows[self.channel.rank]
        torch.cat([*views, *(state["advice"] for state in self.advised)], out=sent).mul_(share)
        wait = self.channel.begin_all_reduce(sent) if self.rows is None else None
        self._mean = self.buffer[: self._dense]

        def finish() -> None:
            if wait is not None:
                wait()
            else:
                # There are two rows, whose sum is the same in either order, so both ranks have the same bits.
                torch.sum(cast(Tensor, self.rows), 0, out=self.buffer)
            targets = [*views, *(state["agreed"] for state in self.advised)]
            torch._foreach_copy_(targets, list(torch.split(self.buffer, [target.numel() for target in targets])))

        return finish


def joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join neighbouring ranges to one."""
    out: list[tuple[int, int]] = []
    for lo, hi in ranges:
        if out and out[-1][1] == lo:
            out[-1] = (out[-1][0], hi)
        elif hi > lo:
            out.append((lo, hi))
    return out
