"""Classify scanned digits with a small ResNet-20: 10 epochs reach 98 to 99 % of the test set."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gradwire.bench.data.digits import load_digits
from gradwire.bench.models.resnet20 import ResNetV2, resnet20_small
from gradwire.bench.recipe import Recipe
from gradwire.bench.tasks.base import Task

__all__ = ["ClassifyDigits"]


class ClassifyDigits(Task):
    """19,026 parameters, 22 steps an epoch at a batch of 64 over all workers."""

    name = "digits"
    measure = "test accuracy"

    def __init__(self, recipe: Recipe | None = None) -> None:
        self.recipe = recipe or Recipe()
        self.data = load_digits()

    def model(self) -> ResNetV2:
        return resnet20_small()

    def steps(self, epochs: int) -> int:
        return epochs * (len(self.data.train_labels) // self.recipe.batch)

    def shares(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.data.train_labels), generator=torch.Generator().manual_seed(epoch))
        for step in range(self.steps(1)):
            share = order[step * self.recipe.batch : (step + 1) * self.recipe.batch][rank::world]
            yield self.data.train_images[share], self.data.train_labels[share]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target)

    @torch.no_grad()
    def quality(self, model: nn.Module) -> float:
        """The fraction of the test digits that are recognised."""
        model.eval()
        right = model(self.data.test_images).argmax(1) == self.data.test_labels
        return float(right.float().mean())
