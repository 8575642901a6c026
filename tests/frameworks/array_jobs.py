"""Gradients that several frameworks exchange in the same ranks, and torch's answer to them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from gradwire.frontends.optimizer import compress_optimizer
from tests.heard import without_name

SHAPES = {"b": (40,), "v": (40, 24), "w": (48, 40)}
"""Parameters in the order of their names, as JAX walks a dict."""

METHODS: dict[str, dict[str, Any]] = {
    "twobit": {"threshold": 0.5},
    "topk": {"ratio": 0.05},
    "qsgd": {"bits": 4},
    "powersgd": {"rank": 2},
    "blockwise8": {},
}
OPTIONS = {"min_numel": 64, "bucket_mb": 0.005}
STEPS = 3


def gradients(step: int, rank: int) -> dict[str, np.ndarray]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return {name: torch.randn(shape, generator=generator).numpy() for name, shape in SHAPES.items()}


class Parameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))


class Said(logging.Handler):
    """The messages that were logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(without_name(record.getMessage()))


Means = list[dict[str, np.ndarray]]


def torch_means(rank: int, method: str) -> tuple[Means, dict[str, Any]]:
    """The output of every step under ``compress_optimizer``, and the metrics."""
    module, means = Parameters(), []
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    state = compress_optimizer(optimizer, module, method, **OPTIONS, **METHODS[method])
    for step in range(STEPS):
        for name, grad in gradients(step, rank).items():
            module.get_parameter(name).grad = torch.from_numpy(grad)
        state.exchange_gradients()
        means.append({name: param.grad.numpy().copy() for name, param in module.named_parameters()})
    return means, state.metrics()


def compared(rank: int, theirs: Callable[[str], tuple[Means, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Compare the bits and bytes of another framework with torch's for each method, and return its ratio too."""
    told = {}
    for method in METHODS:
        wanted, counted = torch_means(rank, method)
        means, metrics = theirs(method)
        told[method] = {
            "bits": [
                one[name].tobytes() == other[name].tobytes()
                for one, other in zip(wanted, means, strict=True)
                for name in SHAPES
            ],
            "bytes": [each["bytes_sent"] for each in (counted, metrics)],
            "ratio": metrics["ratio"],
            "moved": [bool(each["w"].any()) for each in means],
        }
    return told


def check_compared(results: Sequence[Mapping[str, Any]]) -> None:
    """On every rank: torch's bits and bytes, something moved, and it was compressed."""
    for result in results:
        assert all(result["bits"])
        assert all(result["moved"])
        assert result["bytes"][0] == result["bytes"][1] > 0
        assert result["ratio"] > 2
