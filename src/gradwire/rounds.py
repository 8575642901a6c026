"""Local training steps with an occasional compressed outer step, for workers with a slow link between them."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.optim import Optimizer

from gradwire._short_traceback import short_traceback
from gradwire.optim.local.diloco import DiLoCo
from gradwire.optim.local.meeting import Meeting
from gradwire.optim.local.qsparse_local import QsparseLocal

__all__ = ["diloco", "local_sgd"]


@short_traceback
def local_sgd(
    inner: Optimizer,
    compressor: Any = "topk",
    *,
    every: int = 100,
    meeting: Meeting | None = None,
    process_group: dist.ProcessGroup | None = None,
    **options: Any,
) -> QsparseLocal:
    """Train alone for ``every`` steps, then continue from the compressed mean of the workers' changes.

    x_i = m_i + agreed - p_i;  m_i = x_i - C(x_i);  agreed = agreed - mean C(x_i);  p_i = agreed

    At a meeting the mean is over whoever hands in before the round closes: workers come and go between rounds, one that
    is slow or dead is left behind after the deadline, and what it has to say waits in its residual for the next round
    in which it takes part. Call ``join()`` on the optimizer before the first step and ``leave()`` after the last.

    Args:
        inner: the local optimizer, over all that is exchanged; 16 or 32 bits.
        compressor: compressor of the change, by name or as an object; it and what it declares decide what is sent and
            kept.
        every: local steps in a round, >= 1. More: fewer bytes, and workers drift further apart.
        meeting: meeting of workers that come and go; None: they are the ranks of ``process_group``, fixed.
        process_group: None is the default group.
        options: further arguments, as for ``compress_ddp``, and ``islands``, ``offload`` and ``weigh``, as for
            ``gradwire.optim.DiLoCo``.

    Returns:
        The optimizer; its ``round`` counts rounds, ``metrics()`` tells who took part and what was sent.

    Raises:
        ConfigError: a parameter is outside its range.
        GroupError: ranks were given different parameters.

    Example:
        >>> import torch, torch.distributed as dist
        >>> model = torch.nn.Linear(64, 64)
        >>> inner = torch.optim.SGD(model.named_parameters(), lr=0.1)
        >>> optimizer = local_sgd(inner, "topk", ratio=0.01, every=5, meeting=Meeting(dist.HashStore(), "0"))
        >>> optimizer.join()
        >>> for _ in range(10):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(2, 64)).sum().backward()
        ...     optimizer.step()
        >>> optimizer.round
        2
        >>> optimizer.leave()

    Source:
        S. U. Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; with compression and memory,
        D. Basu, D. Data, C. Karakus, S. Diggavi, "Qsparse-local-SGD", NeurIPS 2019.
    """
    return QsparseLocal(inner, compressor, every=every, process_group=process_group, meeting=meeting, **options)


@short_traceback
def diloco(
    inner: Optimizer,
    compressor: Any = None,
    *,
    every: int = 500,
    lr: float = 0.7,
    momentum: float = 0.9,
    meeting: Meeting | None = None,
    process_group: dist.ProcessGroup | None = None,
    **options: Any,
) -> DiLoCo:
    """Train as ``local_sgd`` does, but take the mean change as the gradient of an outer step with Nesterov's momentum.

    d = mean C(m_i + agreed - p_i);  v = momentum v + d;  agreed = agreed - lr (d + momentum v);  p_i = agreed

    Args:
        inner: the local optimizer, usually ``torch.optim.AdamW``.
        compressor: compressor of the pseudo-gradient; below 8 bits with ``memory="residual"``. None: "qsgd", 4 bits an
            element, with a residual.
        every: local steps in a round, >= 1.
        lr: learning rate of the outer step, > 0.
        momentum: momentum of the outer step, in [0, 1).
        meeting: meeting of workers, as for ``local_sgd``.
        process_group: group of the workers, as for ``local_sgd``.
        options: further arguments, as for ``gradwire.optim.DiLoCo``, such as ``fragments``, ``delay`` and
            ``islands``, and for ``compress_ddp``.

    Returns:
        The optimizer, as for ``local_sgd``.

    Raises:
        ConfigError: a parameter is outside its range.
        GroupError: ranks were given different parameters.

    Example:
        >>> import torch, torch.distributed as dist
        >>> model = torch.nn.Linear(64, 64)
        >>> inner = torch.optim.AdamW(model.named_parameters(), lr=1e-3)
        >>> optimizer = diloco(inner, "qsgd", bits=4, memory="residual", meeting=Meeting(dist.HashStore(), "0"))
        >>> optimizer.join()
        >>> optimizer.lr
        0.7

    Source:
        A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv:2311.08105,
        2023.
    """
    return DiLoCo(
        inner,
        compressor,
        every=every,
        lr=lr,
        momentum=momentum,
        process_group=process_group,
        meeting=meeting,
        **options,
    )
