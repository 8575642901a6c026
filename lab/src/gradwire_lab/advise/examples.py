"""Random inputs of the form that a model of ``gradwire_lab.experiments.models`` takes, by the data it is trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gradwire_lab.experiments import models

__all__ = ["example"]

WORDS, CONTEXT = 35, 1024
"""Words of an example: unrolled through an LSTM as in its recipe, and what a transformer sees at most."""

CHARACTERS = 97
"""Most bytes of a text are among so many; the small variant knows no others."""


def example(model: nn.Module, name: str, batch: int, *, small: bool = False) -> Tensor:
    """Make a random batch.

    Args:
        model: model that takes the batch as its input.
        name: name of the model in ``gradwire models``.
        batch: examples.
        small: the model is the small variant.

    Raises:
        ConfigError: no such model.

    Example:
        >>> example(models.build("resnet20"), "resnet20", 4).shape
        torch.Size([4, 3, 32, 32])
    """
    return INPUTS[models.find(name).DATA](model, batch, small)


def _images(size: int) -> Callable[[Any, int, bool], Tensor]:
    def images(_model: Any, batch: int, small: bool) -> Tensor:
        return torch.randn(batch, 1, 8, 8) if small else torch.randn(batch, 3, size, size)

    return images


def _words(length: int, vocabulary: int = 1000) -> Callable[[Any, int, bool], Tensor]:
    def words(_model: Any, batch: int, small: bool) -> Tensor:
        return torch.randint(vocabulary, (batch, 16 if small else length))

    return words


def _pairs(model: Any, batch: int, _small: bool) -> Tensor:
    return torch.stack([torch.randint(each.num_embeddings, (batch,)) for each in (model.users, model.items)], 1)


def _surfaces(_model: Any, batch: int, small: bool) -> Tensor:
    size = 64 if small else 512
    return torch.randn(batch, 1, size, size)


INPUTS: dict[str, Callable[[Any, int, bool], Tensor]] = {
    "CIFAR-10": _images(32),
    "ImageNet": _images(224),
    "Penn Treebank": _words(WORDS),
    "text": _words(CONTEXT),
    "bytes of text": _words(CONTEXT, CHARACTERS),
    "MovieLens-20M": _pairs,
    "DAGM2007": _surfaces,
}
"""Makers of examples, by what the models' files say of their data."""
