"""The contract of a benchmark task.

A task says what is trained and how good it became; it never sees the workers' communication. Every worker makes the
same batches in the same order and takes its own share of each, so that a run depends on the seed and on nothing else.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from gradwire.errors import ConfigError, nearest, require
from gradwire_lab.experiments import data, models
from gradwire_lab.experiments.data.base import Examples
from gradwire_lab.experiments.recipe import Recipe

__all__ = ["Task", "pieces", "shuffled"]


class Task(ABC):
    """Base of every task; each is in a file with its own name.

    Args:
        model: name of one of the models in ``MODELS``; None: the first of them.
        folder: folder of real data; None: the data that is embedded, and the small variant of the model.
        recipe: None: the model's own.

    Raises:
        ConfigError: a model of another task, or a folder that does not hold the data.
    """

    name: ClassVar[str]
    measure: ClassVar[str]
    """Name of the measure that ``quality`` returns, in words for a table's head."""

    data: Any
    """The data, which have a ``name``."""

    order: int = 0
    """Number of the order in which the examples come, from 0 to 2**32 - 1. ``Loop`` sets it."""

    higher_is_better: ClassVar[bool] = True
    MODELS: ClassVar[tuple[str, ...]]
    DATA: ClassVar[tuple[str, ...]]
    """The files of ``gradwire_lab.experiments.data`` that read a folder for this task."""

    def __init__(self, model: str | None = None, folder: Path | None = None, recipe: Recipe | None = None) -> None:
        self.small = folder is None
        self.module = self._chosen(model)
        self.data = self.embedded() if folder is None else data.load(folder, self.DATA)
        self.recipe = recipe or (self.module.RECIPE_SMALL if self.small else self.module.RECIPE)

    @property
    def model_name(self) -> str:
        """The model's name in ``gradwire models``; a small variant is marked as such."""
        name = self.module.__name__.rpartition(".")[2]
        return f"{name}_small" if self.small else name

    def adjusted(self, changes: Mapping[str, Any]) -> Self:
        """Return the same task with the changes to the recipe that a method needs."""
        if changes:
            self.recipe = dataclasses.replace(self.recipe, **changes)
        return self

    def model(self, device: str = "cpu") -> nn.Module:
        """Make a new model, initialised from torch's global generator.

        Args:
            device: device on which the model is made; on ``meta`` it has shapes and no memory.

        Raises:
            ConfigError: micro-batches of a model that goes on in a batch where the one before it ended.
        """
        name = self.module.__name__.rpartition(".")[2]
        made = models.build(name, small=self.small, sizes=self.sizes(), device=device)
        carries, micro = hasattr(made, "reset"), self.recipe.micro
        require(not carries or micro is None, "Recipe.micro", f"None for {name}, which carries its state on", micro)
        return made

    def sizes(self) -> dict[str, int]:
        """The sizes of the data that the model must know."""
        return {}

    def begin_epoch(self, model: nn.Module) -> None:
        """Let a model forget the state that it carries from batch to batch, if it has one."""
        forget = getattr(model, "reset", None)
        if forget is not None:
            forget()

    def shown(self, quality: float) -> str:
        """Format a quality for a table."""
        return f"{quality:.1%}"

    def quality(self, model: nn.Module) -> float:
        """The measure over the test set."""
        return self.measures(model)[self.measure]

    @abstractmethod
    def embedded(self) -> Any:
        """Make the data that comes with the package or is generated."""

    @abstractmethod
    def baselines(self) -> dict[str, float]:
        """The measure without any learning, by the rule that is used instead."""

    def steps(self, epochs: int) -> int:
        """The number of steps in ``epochs`` epochs: as in the recipe, and no more than the data allows."""
        whole = self.steps_of_data()
        return epochs * min(whole, self.recipe.steps or whole)

    def steps_of_data(self) -> int:
        """The number of steps through all data; 0 if the data does not suffice for one batch."""
        return self.largest_batch() // self.recipe.batch

    def shares(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The inputs and targets of worker ``rank`` in an epoch, batch by batch; an incomplete last batch is dropped.

        Raises:
            ConfigError: an epoch has no whole batch, or a batch has nothing for one of the workers.
        """
        batch, most = self.recipe.batch, self.largest_batch()
        require(batch <= most, "Recipe.batch", f"at most {most}, all that {self.data.name} has for a batch", batch)
        # The mean over an empty share would be 0, and the average of all workers too small.
        require(world <= batch, "workers", f"at most {batch}, the examples of a batch", world)
        return islice(self._shares(epoch, rank, world), self.steps(1))

    @abstractmethod
    def largest_batch(self) -> int:
        """The number of examples of all data; a larger batch would leave an epoch without a step."""

    @abstractmethod
    def _shares(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The same as ``shares``, for a batch that the data can fill."""

    def generator(self, epoch: int) -> torch.Generator:
        """Make the generator of an epoch's random numbers, equal on all workers and different for each ``order``.

        Args:
            epoch: number of the epoch, >= 0.
        """
        # Torch's generator on a CPU uses the lower 32 bits of its seed alone. The multiplier is odd, so that no two
        # orders are the same, and spreads them, so that one order does not begin where another is an epoch later.
        return torch.Generator().manual_seed((epoch + 0x9E3779B1 * self.order) % 2**32)

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean loss over a share."""

    @abstractmethod
    def measures(self, model: nn.Module) -> dict[str, float]:
        """Compute everything that is measured over the test set, ``measure`` among it; the model is left in evaluation
        mode.
        """

    def _chosen(self, model: str | None) -> ModuleType:
        module = models.find(model or self.MODELS[0])
        if module.__name__.rpartition(".")[2] not in self.MODELS:
            raise ConfigError(f"model {model!r} is of another task than {self.name}: {nearest(model, self.MODELS)}")
        return module


def shuffled(
    examples: Examples, batch: int, generator: torch.Generator, rank: int, world: int, *, augment: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """A worker's shares of batches, in an order that depends on the generator alone."""
    order = torch.randperm(len(examples), generator=generator)
    for step in range(len(order) // batch):
        draws = torch.rand(batch, 3, generator=generator) if augment else None
        mine = slice(rank, None, world)
        yield examples.batch(order[step * batch :][:batch][mine], None if draws is None else draws[mine])


def pieces(examples: Examples, size: int = 512) -> Iterator[tuple[Tensor, Tensor]]:
    """All examples in order, as many at a time as memory allows."""
    for indices in torch.split(torch.arange(len(examples)), size):
        yield examples.batch(indices)
