"""Prediction of a user's next choice: by default among generated choices, with a small NeuMF."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gradwire.errors import ConfigError
from gradwire_lab.experiments.data.base import Interactions, Tensors
from gradwire_lab.experiments.data.interactions import generate
from gradwire_lab.experiments.recipe import Recipe
from gradwire_lab.experiments.tasks.base import Task, shuffled

__all__ = ["Recommendation"]

NEGATIVES = 4
"""Items drawn for each that was chosen; as in the original nobody checks that they were not."""

RIVALS = 100
"""Items that a user did not choose, among which the held-out one must be in the first ten."""

TOP = 10


class Recommendation(Task):
    """Hit rate at 10: the share of users whose last item is among the ten best of 101. A folder may hold MovieLens.

    Example:
        >>> task = Recommendation()
        >>> task.data.name, task.model_name, task.steps(epochs=10)
        ('generated choices', 'ncf_small', 760)
    """

    name = "recommendation"
    measure = "hit rate at 10"
    MODELS = ("ncf",)
    DATA = ("movielens",)
    data: Interactions

    def __init__(self, model: str | None = None, folder: Path | None = None, recipe: Recipe | None = None) -> None:
        super().__init__(model, folder, recipe)
        most = int(torch.bincount(self.data.train[:, 0], minlength=self.data.users).max())
        left = self.data.items - most - 1
        if left < RIVALS:
            raise ConfigError(
                f"{self.data.name} must leave each user {RIVALS} items that were not chosen, to rank the held-out one "
                f"among them; found {left} for a user who chose {most + 1} of {self.data.items}"
            )

    def embedded(self) -> Interactions:
        return generate()

    def sizes(self) -> dict[str, int]:
        return {"users": self.data.users, "items": self.data.items}

    def baselines(self) -> dict[str, float]:
        """The hit rates of a random order, and of the order by popularity."""
        popularity = torch.bincount(self.data.train[:, 1], minlength=self.data.items).float()
        return {"chance": TOP / (RIVALS + 1), "popularity": _hits(popularity[self.contest()])}

    def largest_batch(self) -> int:
        return (1 + NEGATIVES) * len(self.data.train)

    def _shares(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
        return shuffled(self._examples(epoch), self.recipe.batch, self.generator(epoch), rank, world, augment=False)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(output, target)

    @torch.no_grad()
    def measures(self, model: nn.Module) -> dict[str, float]:
        model.eval()
        items = self.contest()
        users = torch.arange(self.data.users)[:, None].expand_as(items)
        pairs = torch.stack([users, items], 2).view(-1, 2)
        scores = torch.cat([model(piece) for piece in torch.split(pairs, 1 << 16)])
        return {self.measure: _hits(scores.view_as(items))}

    def contest(self) -> Tensor:
        """The items to be ranked for each user: 100 that were not chosen, and at the end the one that was held out.

        Drawn with a seed of their own; where a draw repeats, the place of the repetition is filled by another draw.
        """
        users, items = self.data.users, self.data.items
        chosen = (self.data.train[:, 0] * items + self.data.train[:, 1]).sort().values
        generator = torch.Generator().manual_seed(1)
        rivals = torch.full((users, RIVALS), -1)
        while (rivals < 0).any():
            drawn = torch.randint(items, (users, RIVALS), generator=generator)
            rivals = torch.where(rivals < 0, drawn, rivals)
            rivals[_repeated(rivals) | (rivals == self.data.held_out[:, None])] = -1
            asked = torch.arange(users)[:, None] * items + rivals
            place = torch.searchsorted(chosen, asked).clamp(max=len(chosen) - 1)
            rivals[(chosen[place] == asked) & (rivals >= 0)] = -1
        return torch.cat([rivals, self.data.held_out[:, None]], 1)

    def _examples(self, epoch: int) -> Tensors:
        """The positive examples, and negative items drawn anew in every epoch."""
        users, count = self.data.train[:, :1].repeat(NEGATIVES, 1), len(self.data.train)
        generator = self.generator(epoch)
        items = torch.randint(self.data.items, (NEGATIVES * count, 1), generator=generator)
        pairs = torch.cat([self.data.train, torch.cat([users, items], 1)])
        return Tensors(pairs, (torch.arange(len(pairs)) < count).float())


def _repeated(rows: Tensor) -> Tensor:
    """A mask of the elements of each row that equal an earlier one in it."""
    values, order = rows.sort(dim=1, stable=True)
    again = torch.zeros_like(rows, dtype=torch.bool)
    again[:, 1:] = values[:, 1:] == values[:, :-1]
    return torch.zeros_like(again).scatter(1, order, again)


def _hits(scores: Tensor) -> float:
    """The share of rows whose last column ranks high enough; a tie counts against it, and so does
    NaN on either side.
    """
    return float(((~(scores[:, :-1] < scores[:, -1:])).sum(1) < TOP).float().mean())
