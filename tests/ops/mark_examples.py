"""The part of ``examples`` for buckets and for tiles."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

N, RANKS = 32, 2


def _float() -> Tensor:
    return torch.linspace(-1, 1, N)


EXAMPLES: dict[str, Callable[[], dict[str, Any]]] = {
    "waves_add_decoded": lambda: {
        "values": torch.ones(RANKS, 4),
        "places": torch.zeros(RANKS, 4, dtype=torch.int16),
        "tall": torch.ones(4),
        "wide": torch.ones(64),
        "out": _float(),
        "a": 2,
        "b": 8,
        "down": 2,
        "across": 1,
        "pitch": 8,
        "scale": 0.5,
    },
}
