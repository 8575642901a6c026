"""Exchange of the first steps after a checkpoint in the buckets of the run that wrote it.

Invariants:
    The buckets of the run are saved. Until DDP has them again, all gradients of a step are collected and then exchanged
    in the saved buckets.

Why:
    DDP rebuilds its buckets after the first step, so a fresh model begins with others than the saved run had. Results
    that depend on a bucket's ends (the shards of ``two_phase``, the order of a sum in a ring) would be rounded
    differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.engine.plan import Named

__all__ = ["Regroup"]

STEPS = 3
"""Number of steps after which the saved buckets are given up: DDP was made with other sizes."""


class Regroup:
    """A collector that takes the buckets of a step, and exchanges them as those of the saved run.

    Args:
        buckets: names of the parameters in each bucket of the saved run, all that DDP has.
    """

    def __init__(self, buckets: Sequence[Sequence[str]]) -> None:
        self.buckets, self._left = buckets, STEPS
        self._views: dict[str, Tensor] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._all: Future[None] = Future()

    def needed(self, names: Sequence[str]) -> bool:
        """Return whether this step needs regrouping; to be asked once in each step, with the names
        of its first bucket.
        """
        self._left -= 1
        return self._left >= 0 and list(names) != list(self.buckets[0])

    def hold(self, buffer: Tensor, params: Sequence[Named]) -> Future[Tensor]:
        """Hold a bucket; its future is set when all buckets of the step are exchanged."""
        if not self._views:
            self._all = Future(devices=[] if buffer.device.type == "cpu" else [buffer.device])
        views = torch.split(buffer, [torch.Size(shape).numel() for _, shape in params])
        self._views |= {name: view for (name, _), view in zip(params, views, strict=True)}
        self._shapes |= dict(params)
        # Waited for inside, so that an error of the exchange is one of each bucket's future.
        return self._all.then(lambda done: (done.wait(), buffer)[1])

    @torch.no_grad()
    def exchange(self, run: Callable[[Tensor, Sequence[Named]], object]) -> None:
        """Let ``run`` average each of the saved buckets, contiguous and in the gradients' own dtype."""
        for names in self.buckets:
            if names[0] not in self._views:
                continue  # No method takes these gradients, which were sent as they came.
            parts = [self._views[name] for name in names]
            flat = torch.cat(parts)
            run(flat, [(name, self._shapes[name]) for name in names])
            for part, mean in zip(parts, torch.split(flat, [part.numel() for part in parts]), strict=True):
                part.copy_(mean)
        self._views = {}

    def settle(self, exchanged: Future[None]) -> None:
        """Set the futures of all held buckets to the outcome of the exchange."""
        try:
            # An error that is not set here would leave DDP waiting for the buckets for ever.
            self._all.set_result(exchanged.wait())
        except Exception as error:
            self._all.set_exception(error)  # type: ignore[arg-type]
