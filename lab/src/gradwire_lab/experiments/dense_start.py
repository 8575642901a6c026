"""DiLoCo whose first steps are those of synchronous data parallel."""

from __future__ import annotations

from typing import Any, ClassVar

import torch.distributed as dist
from torch.optim import Optimizer

from gradwire.errors import is_int
from gradwire.optim.local.diloco import DiLoCo
from gradwire_lab.experiments.torchhooks import ring_bytes

__all__ = ["DenseStart"]


class DenseStart(DiLoCo):
    """Average gradients, uncompressed, in each of the first steps, and go on as ``DiLoCo`` from there.

    The moments of the inner optimizer, of averaged gradients so far, stay. A gradient that was clipped before ``step``
    was clipped on each rank alone.

    Args:
        dense: number of these steps, >= 0.
        options: further arguments of ``DiLoCo``.
    """

    ranges: ClassVar = {**DiLoCo.ranges, "dense": (lambda value: is_int(value, 0), "an integer >= 0")}

    def __init__(self, inner: Optimizer, compressor: Any = "none", *, dense: int = 0, **options: Any) -> None:
        super().__init__(inner, compressor, **options)
        self.dense = dense

    def _step_alone(self) -> bool:
        if self.made < self.dense:
            grads = [param.grad for param in self.params if param.grad is not None]
            for grad in grads:
                dist.all_reduce(grad)
                grad.div_(dist.get_world_size())
            self.exchange.counters.bytes_sent += ring_bytes(sum(grad.nbytes for grad in grads))
        return super()._step_alone()

    def _exchange_due(self) -> None:
        if self.made <= self.dense:
            # All have the same parameters, from which the next step starts a round.
            self.since = 0
        else:
            super()._exchange_due()
