"""The contract of a benchmark task.

A task says what is trained and how good it became; it never sees the workers' communication. Every worker makes the
same batches in the same order and takes its own share of each, so that a run depends on the seed and on nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from torch import Tensor, nn

from gradwire.bench.recipe import Recipe

__all__ = ["Task"]


class Task(ABC):
    """Base of every task: one in each file, named like the file."""

    name: ClassVar[str]
    measure: ClassVar[str]
    """What ``quality`` returns, in words for a table's head."""

    recipe: Recipe

    @abstractmethod
    def model(self) -> nn.Module:
        """A fresh model, initialised from torch's global generator."""

    @abstractmethod
    def steps(self, epochs: int) -> int:
        """How many steps ``epochs`` epochs have."""

    @abstractmethod
    def shares(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The inputs and targets of worker ``rank``, batch by batch; an incomplete last batch is dropped."""

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean loss over a share."""

    @abstractmethod
    def quality(self, model: nn.Module) -> float:
        """The measure over the test set."""
