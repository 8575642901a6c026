"""Parameters that no rank used in a step.

Law: an optimizer must see no gradient for such a parameter, or it would decay it and move it by its momentum. So
nothing of what waits for it may be sent: its gradient stays away, and all that is kept for it stays as it was. Buckets
of DDP with ``find_unused_parameters`` do not say whose gradient is there: one small all-reduce for each bucket tells,
and a gradient that is zero in every element on every rank counts as unused, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.exchange.exchange import Exchange
from gradwire.exchange.plan import Named

__all__ = ["exchange_used", "run_without"]


@torch.no_grad()
def exchange_used(
    exchange: Exchange, flat: Tensor, params: Sequence[Named], itemsize: int = 4, ready: Any = None
) -> None:
    """Exchange as ``Exchange.run`` does, but parameters that no rank used send nothing."""
    views = torch.split(flat, [torch.Size(shape).numel() for _, shape in params])
    used = torch.stack([view.any() for view in views]).to(torch.uint8)
    exchange.any_rank(used)
    # An accelerator is not asked, so there everything is copied.
    asked = used.tolist() if flat.device.type == "cpu" else [0] * len(params)
    unused = {i: used[i] == 0 for i, known in enumerate(asked) if not known}
    run_without(exchange, flat, params, unused, itemsize, ready)


@torch.no_grad()
def run_without(
    exchange: Exchange,
    flat: Tensor,
    params: Sequence[Named],
    unused: Mapping[int, Tensor],
    itemsize: int = 4,
    ready: Any = None,
) -> None:
    """Exchange as ``Exchange.run`` does, but parameters that no rank used get zero, and their kept tensors stay.

    Args:
        unused: flags of the parameters that may be unused, by their place in ``params``: bool of one element, the same
            on all ranks. The kept tensors of these parameters are copied.
    """
    if unused:
        exchange.plan(params)
    before = {i: [(tensor, tensor.clone()) for tensor in exchange.residuals.tensors_of(params[i][0])] for i in unused}
    exchange.run(flat, params, itemsize, ready)
    views = torch.split(flat, [torch.Size(shape).numel() for _, shape in params]) if unused else ()
    for i, flag in unused.items():
        views[i].masked_fill_(flag, 0.0)
        for tensor, copy in before[i]:
            torch.where(flag, copy, tensor, out=tensor)
