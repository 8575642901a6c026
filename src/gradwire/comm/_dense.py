"""What travels uncompressed: small tensors together, excluded ones, and everything during a dense warm-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from gradwire.comm._channel import Channel
from gradwire.comm._part import nonfinite

__all__ = ["DenseSession"]


class DenseSession:
    """One all-reduce over ranges of a flat gradient; a single range is summed where it lies."""

    def __init__(self, ranges: Sequence[tuple[int, int]], channel: Channel, device: torch.device) -> None:
        self.ranges, self.channel = joined(ranges), channel
        packed = sum(hi - lo for lo, hi in self.ranges) if len(self.ranges) > 1 else 0
        self.buffer = torch.zeros(packed, dtype=torch.float32, device=device)

    def begin(self, flat: Tensor) -> Callable[[], Tensor]:
        """Start to average the ranges over the ranks, in place.

        Returns:
            A function that waits for the result and tells whether it has a value that is not finite. Meanwhile other
            ranges of ``flat`` may be worked on.
        """
        views = [flat[lo:hi] for lo, hi in self.ranges]
        packed = self.buffer if len(views) != 1 else views[0]
        if len(views) > 1:
            torch.cat(views, out=self.buffer)
        wait = self.channel.begin_all_reduce(packed.div_(self.channel.world))
        return partial(self._finish, packed, views, wait)

    def _finish(self, packed: Tensor, views: list[Tensor], wait: Callable[[], None]) -> Tensor:
        wait()
        if len(views) > 1:
            torch._foreach_copy_(views, list(torch.split(packed, [view.numel() for view in views])))
        return nonfinite(packed)


def joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring ranges made one."""
    out: list[tuple[int, int]] = []
    for lo, hi in ranges:
        if out and out[-1][1] == lo:
            out[-1] = (out[-1][0], hi)
        elif hi > lo:
            out.append((lo, hi))
    return out
