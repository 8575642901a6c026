"""Parameters that no rank used in a step.

Invariants:
    The gradient of such a parameter is not written, nothing of its residual is sent, and all that is kept for it stays
    as it was.

Why:
    * An optimizer that saw a gradient would decay the parameter, and move it by its momentum.
    * Buckets of DDP with ``find_unused_parameters`` do not say whose gradient is there. One small all-reduce for each
      bucket tells; a gradient that is zero in every element on every rank counts as unused, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.engine.exchange import USED, Exchange
from gradwire.engine.plan import Named

__all__ = ["exchange_used"]


@torch.no_grad()
def exchange_used(
    exchange: Exchange, flat: Tensor, params: Sequence[Named], itemsize: int = 4, ready: Any = None
) -> None:
    """Exchange as ``Exchange.run`` does, but parameters that no rank used send nothing."""
    views = torch.split(flat, [torch.Size(shape).numel() for _, shape in params])
    uses = torch.stack([view.any() for view in views]).to(torch.uint8).mul_(USED)
    exchange.note_pending(uses, {i: params[i][0] for i in _doubtful(uses)})
    # A rank cannot know alone that no other used the parameter.
    exchange.any_rank(uses)
    exchange.run(flat, params, itemsize, ready, uses={i: uses[i] for i in _doubtful(uses)})


def _doubtful(uses: Tensor) -> list[int]:
    """The places of parameters that are not known to be used: an accelerator is not asked, so there all of them."""
    asked = uses.tolist() if uses.device.type == "cpu" else [0] * len(uses)
    return [i for i, use in enumerate(asked) if use != USED]
