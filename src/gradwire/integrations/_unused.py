"""Parameters that no rank used in a step, in buckets of DDP with ``find_unused_parameters``.

Law: DDP throws away what arrives for such a parameter, its optimizer sees no gradient. So nothing of what waits for it
may be sent: its gradient stays zero, and all that is kept for it stays as it was. One small all-reduce for each
bucket tells which these are; a gradient that is zero in every element on every rank counts as unused, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.exchange import Exchange
from gradwire.plan import Named

__all__ = ["exchange_used"]


@torch.no_grad()
def exchange_used(exchange: Exchange, flat: Tensor, params: Sequence[Named], itemsize: int = 4) -> None:
    """As ``Exchange.run``, but what no rank used sends nothing."""
    views = torch.split(flat, [torch.Size(shape).numel() for _, shape in params])
    used = torch.stack([view.any() for view in views]).to(torch.uint8)
    exchange.channel.all_reduce(used, "max")
    exchange.plan(params)
    # An accelerator is not asked, so there everything is copied.
    asked = used.tolist() if flat.device.type == "cpu" else [0] * len(params)
    idle = [(view, name, flag == 0) for view, (name, _), flag, known in zip(views, params, used, asked, strict=True)
            if not known]  # fmt: skip
    before = [[(tensor, tensor.clone()) for tensor in exchange.keeper.tensors_of(name)] for _, name, _ in idle]
    exchange.run(flat, params, itemsize)
    for (view, _, unused), pairs in zip(idle, before, strict=True):
        view.masked_fill_(unused, 0.0)
        for tensor, copy in pairs:
            torch.where(unused, copy, tensor, out=tensor)
