"""Gradients that break compressors: deterministic, by name and size."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["SPECIAL", "gaussian"]


def gaussian(n: int, seed: int = 0) -> Tensor:
    """Independent normal elements of variance 1, float32 of shape ``(n,)``."""
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def _one_hot(n: int) -> Tensor:
    x = torch.zeros(n)
    x[n // 2 : n // 2 + 1] = -3.0
    return x


def _spike(n: int) -> Tensor:
    # One large element among many of 1 / (1 + sqrt n): the worst case of rounding relative to the largest.
    x = torch.full((n,), 1 / (1 + math.sqrt(n)))
    x[:1] = 1.0
    return x


SPECIAL: dict[str, Callable[[int], Tensor]] = {
    "zero": torch.zeros,
    "negative zero": lambda n: -torch.zeros(n),
    "constant": lambda n: torch.full((n,), 0.3),
    "alternating": lambda n: torch.ones(n).cumsum(0).remainder(2) * 2 - 1,
    "sorted": lambda n: torch.linspace(-1, 1, n),
    "one hot": _one_hot,
    "spike": _spike,
    "heavy tail": lambda n: gaussian(n) ** 3,
    "tiny": lambda n: gaussian(n) * 1e-12,
    "denormal": lambda n: gaussian(n) * 1e-41,
    "huge": lambda n: gaussian(n) * 1e30,
    "mixed scales": lambda n: gaussian(n) * torch.logspace(-20, 20, max(n, 1))[:n],
}
"""Name to function of the number of elements; all finite."""
