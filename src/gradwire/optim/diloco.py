"""Optimizer of hundreds of local steps, then one compressed outer step."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from gradwire.errors import is_number
from gradwire.meeting.meeting import Meeting
from gradwire.modes import ordinary_modes
from gradwire.optim._flat import FlatParameters
from gradwire.optim.local import LocalSteps

__all__ = ["DiLoCo"]


class DiLoCo(LocalSteps):
    """Train alone for ``every`` steps, exchange the change as a pseudo-gradient, and take a Nesterov step with it.

    d = exchange(agreed - p_i);  v = momentum v + d;  agreed = agreed - lr (d + momentum v);  p_i = agreed

    The outer step is ``torch.optim.SGD(lr, momentum, nesterov=True)``. A pseudo-gradient is far less noisy than a
    gradient, so few bits are enough; below 8 bits keep a residual (``memory="residual"``), which is in units of the
    parameters and does not depend on a learning rate. All ranks must call ``step`` equally often; after every
    exchange their parameters are bit-identical (``optimizer.in_step``). Buffers such as those of batch normalisation
    stay each rank's own.

    A step whose local gradient is not finite is left out on its rank, and counts. If a rank's way is not finite the
    round is dropped: all go on from where they last met, with outer momentum and residuals as they were.

    Args:
        inner: the local optimizer, usually ``torch.optim.AdamW``, over all that is exchanged; 16 or 32 bits. Rank 0's
            parameters are sent to the others. Give it ``model.named_parameters()`` where options name parameters.
        compressor: compressor of the pseudo-gradient, by name or as an object.
        every: local steps in a round, >= 1; 30 to 1000 are usual. More: fewer bytes, and ranks drift further apart.
        lr: learning rate of the outer step, > 0.
        momentum: momentum of the outer step, in [0, 1).
        process_group: the ranks; None is the default group.
        meeting: meeting of workers that come and go, in place of a group: see ``gradwire.local_sgd``.
        options: further arguments, as for ``compress_ddp``.

    Raises:
        ConfigError: a parameter is outside its range.
        GroupError: ranks were given different parameters.

    Example:
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> model = torch.nn.Linear(64, 64)
        >>> inner = torch.optim.AdamW(model.named_parameters(), lr=1e-3)
        >>> optimizer = DiLoCo(inner, "qsgd", bits=4, every=2)
        >>> for _ in range(4):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(2, 64)).sum().backward()
        ...     optimizer.step()
        >>> optimizer.metrics()["steps"]
        2
        >>> dist.destroy_process_group()

    Source:
        A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv:2311.08105,
        2023.
    """

    ranges: ClassVar = {
        **LocalSteps.ranges,
        "lr": (lambda value: is_number(value) and 0 < value < math.inf, "a finite number > 0"),
        "momentum": (lambda value: is_number(value) and 0 <= value < 1, "in [0, 1)"),
    }

    @ordinary_modes()
    def __init__(
        self,
        inner: Optimizer,
        compressor: Any = "qsgd",
        *,
        every: int = 500,
        lr: float = 0.7,
        momentum: float = 0.9,
        process_group: dist.ProcessGroup | None = None,
        meeting: Meeting | None = None,
        **options: Any,
    ) -> None:
        facts = {"lr": lr, "momentum": momentum}
        super().__init__(inner, compressor, every, options, process_group, meeting, facts)
        self.lr, self.momentum = lr, momentum
        self.velocity = FlatParameters(self.params)

    def kept(self) -> dict[str, FlatParameters]:
        return {"agreed": self.agreed, "velocity": self.velocity}

    @torch.no_grad()
    def outer(self, mean: Tensor) -> None:
        """Take Nesterov's step."""
        self.velocity.data.mul_(self.momentum).add_(mean)
        mean.add_(self.velocity.data, alpha=self.momentum)
        self.agreed.data.add_(mean, alpha=-self.lr)
