"""The part of ``examples`` for buckets and for tiles."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

N, RANKS = 32, 2


def _float() -> Tensor:
    return torch.linspace(-1, 1, N)


EXAMPLES: dict[str, Callable[[], dict[str, Any]]] = {}
