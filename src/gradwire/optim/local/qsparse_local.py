"""Optimizer of a few local steps, then an exchange of the change, sparse and quantised, with memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.optim import Optimizer

from gradwire.modes import ordinary_modes
from gradwire.optim.local.local_steps import LocalSteps, Weigh
from gradwire.optim.local.meeting import Meeting

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["QsparseLocal"]


class QsparseLocal(LocalSteps):
    """Train alone for ``every`` steps, exchange the change with error feedback, and continue from the mean.

    x_i = m_i + agreed - p_i;  m_i = x_i - C(x_i);  agreed = agreed - mean C(x_i);  p_i = agreed

    The paper's C quantises the k largest elements of x: ``compose(TopK(0.1), QSGD(bits=4))``, the default; any
    contraction will do. The memory is in units of the parameters: it contains the learning rate. Momentum belongs to
    the inner optimizer and acts on local steps only. Synchronous: all ranks exchange after the same step; the paper
    also lets ranks skip rounds, which a collective cannot use, as it waits for everybody. What ``DiLoCo`` says of step
    counts, buffers and values that are not finite holds here too; without momentum and with an outer step of 1 the two
    are the same.

    Args:
        inner: the local optimizer, over all that is exchanged. Rank 0's parameters are sent to the others.
        compressor: compressor of the pseudo-gradient, by name or as an object; with the residual that it declares, or
            ``memory=``.
        every: H, local steps in a round, >= 1; 1 to 8 in the paper. More: fewer bytes, and ranks drift further apart.
        process_group: the ranks; None is the default group.
        meeting: meeting of workers that come and go, in place of a group: see ``gradwire.local_sgd``.
        islands: mesh or group of the ranks that hold the same shard, for workers of several ranks, as for ``DiLoCo``.
        offload: keep the parameters of the last round, 4 bytes an element, in the host's memory.
        weigh: weights of the workers in the mean of a meeting, as for ``DiLoCo``.
        options: further arguments, as for ``compress_ddp``.

    Raises:
        ConfigError: a parameter is outside its range.
        GroupError: ranks were given different parameters.

    Example:
        >>> import torch
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> model = torch.nn.Linear(64, 64)
        >>> inner = torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9)
        >>> optimizer = QsparseLocal(inner, "topk", ratio=0.05, every=4)
        >>> for _ in range(8):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(2, 64)).sum().backward()
        ...     optimizer.step()
        >>> optimizer.metrics()["steps"], optimizer.metrics()["rounds"]
        (8, 2)
        >>> dist.destroy_process_group()

    Source:
        D. Basu, D. Data, C. Karakus, S. Diggavi, "Qsparse-local-SGD: Distributed SGD with Quantization,
        Sparsification and Local Computations", NeurIPS 2019.
    """

    @ordinary_modes()
    def __init__(
        self,
        inner: Optimizer,
        compressor: Any = "compose",
        *,
        every: int = 4,
        process_group: dist.ProcessGroup | None = None,
        meeting: Meeting | None = None,
        islands: DeviceMesh | dist.ProcessGroup | None = None,
        offload: bool = False,
        weigh: Weigh = "workers",
        **options: Any,
    ) -> None:
        shared = (inner, compressor, every, options, process_group, meeting)
        super().__init__(*shared, facts={}, islands=islands, offload=offload, weigh=weigh)
