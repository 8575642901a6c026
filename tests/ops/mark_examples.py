"""The part of ``examples`` for elements that are marked, and for tiles."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

N, RANKS = 32, 2


def _float() -> Tensor:
    return torch.linspace(-1, 1, N)


def _bitmap() -> Tensor:
    return torch.tensor([3, 0, 0, 9], dtype=torch.uint8)


def _count(*shape: int) -> Tensor:
    return torch.full(shape, 4, dtype=torch.int32)


def _entries() -> dict[str, Tensor]:
    return {"counts": _count(1), "values": torch.zeros(4), "indices": torch.zeros(4, dtype=torch.int16)}


EXAMPLES: dict[str, Callable[[], dict[str, Any]]] = {
    "bucket_add_decoded": lambda: {
        "codes": torch.zeros(RANKS, N, dtype=torch.uint8),
        "levels": torch.ones(RANKS, 16),
        "out": _float(),
        "scale": 0.5,
    },
    "bucket_encode": lambda: {
        "x": _float(),
        "bucket_of": torch.zeros(65536, dtype=torch.uint8),
        "codes": torch.zeros(N, dtype=torch.uint8),
        "sums": torch.empty(256, dtype=torch.float64),
        "counts": torch.empty(256, dtype=torch.int64),
    },
    "exponent_add_decoded": lambda: {
        "streams": torch.zeros(RANKS, 6, dtype=torch.uint8),
        "used": _count(RANKS, 1),
        "tops": _count(RANKS, 1),
        "out": _float(),
        "scale": 0.5,
    },
    "exponent_encode": lambda: {
        "x": _float(),
        "bitmap": _bitmap(),
        "counts": _count(1),
        "codes": torch.zeros(2, dtype=torch.uint8),
        "top": 127,
    },
    "mark_beyond": lambda: {"x": _float(), "bitmap": _bitmap(), "counts": _count(1), "high": 0.5, "low": 0.5},
    "mark_drawn": lambda: {
        "x": _float(),
        "bitmap": _bitmap(),
        "counts": _count(1),
        "whole": _bitmap(),
        "whole_counts": _count(1),
        "s": 0.5,
        "key": 1,
        "step": 2,
    },
    "parts_add_decoded": lambda: {
        "values": [torch.ones(4), torch.tensor([5], dtype=torch.uint8)],
        "indices": [torch.arange(4, dtype=torch.int16)] * RANKS,
        "counts": [_count(1)] * RANKS,
        "levels": [torch.empty(0), torch.tensor([1.0, -1.0])],
        "out": _float(),
        "scale": 0.5,
    },
    "tail_moments": lambda: {"x": _float(), "table": torch.empty(4), "low": 0.5, "high": 1.0, "unit": 1.0},
    "take_beyond": lambda: {"x": _float(), **_entries(), "high": 0.5, "low": 0.5},
    "take_drawn": lambda: {
        "x": _float(),
        **{f"whole_{name}": room for name, room in _entries().items()},
        **_entries(),
        "s": 0.5,
        "key": 1,
        "step": 2,
    },
    "take_marked": lambda: {
        "x": _float(),
        "bitmap": _bitmap(),
        "counts": _count(1),
        "values": torch.empty(4),
        "indices": torch.empty(4, dtype=torch.int16),
    },
    "tile_topk": lambda: {
        "x": _float(),
        "values": torch.empty(4),
        "places": torch.empty(4, dtype=torch.int16),
        "size": 16,
    },
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
