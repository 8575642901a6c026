"""What travels uncompressed: small tensors together, excluded ones, and everything during a dense warm-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from gradwire.group.channel import Channel
from gradwire.group.part import nonfinite
from gradwire.types import State

__all__ = ["DenseSession", "joined"]


class DenseSession:
    """One all-reduce over ranges of a flat gradient; a single range is summed where it lies.

    Args:
        ranges: of the flat gradient.
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

    def begin(self, flat: Tensor) -> Callable[[], Tensor]:
        """Start to average the ranges over the ranks, in place.

        Returns:
            A function that waits for the result and tells whether it has a value that is not finite. Meanwhile other
            ranges of ``flat`` may be worked on.
        """
        views = [flat[lo:hi] for lo, hi in self.ranges]
        if not self.buffer.numel():
            packed = views[0] if views else self.buffer
            return partial(self._finish, packed, [], self._begin(packed))
        torch.cat([*views, *(state["advice"] for state in self.advised)], out=self.buffer)
        return partial(self._finish, self.buffer, views, self._begin(self.buffer))

    def _begin(self, packed: Tensor) -> Callable[[], None]:
        return self.channel.begin_all_reduce(packed.div_(self.channel.world))

    def _finish(self, packed: Tensor, views: list[Tensor], wait: Callable[[], None]) -> Tensor:
        wait()
        if views or self.wishes:
            targets = [*views, *(state["agreed"] for state in self.advised)]
            torch._foreach_copy_(targets, list(torch.split(packed, [target.numel() for target in targets])))
        return nonfinite(packed[: packed.numel() - self.wishes])


def joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring ranges made one."""
    out: list[tuple[int, int]] = []
    for lo, hi in ranges:
        if out and out[-1][1] == lo:
            out[-1] = (out[-1][0], hi)
        elif hi > lo:
            out.append((lo, hi))
    return out
