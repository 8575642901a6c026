"""Batches in pieces: one for each context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import require

__all__ = ["as_list", "gathered", "input_of", "pieces", "sample_count"]


def as_list(value: Any) -> list[Any]:
    """One or several or none, as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, tuple | list) else [value]


def input_of(batch: Any) -> list[Tensor]:
    """The tensors that a module is called with: of (data, label), or of data alone."""
    return as_list(batch[0] if isinstance(batch, tuple | list) and len(batch) == 2 else batch)


def sample_count(data: Any) -> int:
    """How many samples a batch has."""
    return len(as_list(data)[0])


def pieces(data: Any, count: int) -> list[list[Tensor]]:
    """A batch's tensors in ``count`` pieces along the first dimension, which differ by at most one sample.

    Raises:
        ConfigError: fewer samples than pieces, or something that is no tensor.
    """
    tensors = as_list(data)
    for tensor in tensors:
        require(isinstance(tensor, Tensor), "a batch", "tensors", type(tensor).__name__)
        require(len(tensor) >= count, "a batch", f"at least {count} samples, one for each context", len(tensor))
    return [list(piece) for piece in zip(*(tensor.tensor_split(count) for tensor in tensors), strict=True)]


def gathered(outputs: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The outputs of all pieces or batches, joined, on the device of the first."""
    device = outputs[0][0].device
    return [torch.cat([each.to(device) for each in those]) for those in zip(*outputs, strict=True)]
