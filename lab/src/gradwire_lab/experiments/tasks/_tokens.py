"""Base of tasks that predict the next token of a text, and the baselines that need no learning."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gradwire.errors import require
from gradwire_lab.experiments.data.base import Text
from gradwire_lab.experiments.tasks.base import Task

__all__ = ["NextCharacter", "NextToken", "bigram", "unigram"]

_MEASURED = 8192
"""Characters that are predicted to measure: in windows as far apart as the text allows."""


class NextToken(Task):
    """Base of the tasks whose inputs are windows of a text, and whose targets are the same windows a token later."""

    higher_is_better = False
    data: Text

    def sizes(self) -> dict[str, int]:
        return {"vocabulary": len(self.data.words)}

    @property
    @abstractmethod
    def window(self) -> int:
        """The number of tokens of a step in each row."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), target.flatten())


class NextCharacter(NextToken):
    """Base of tasks whose measure is the mean loss of a character of the test text, in nats, given those before it in a
    window.

    The windows of a step lie at random places of the text, which depend on the epoch alone. An epoch ends after the
    steps of the recipe, or earlier if it has drawn as much as there is. The windows that are measured are the same
    every time.
    """

    measure = "test loss"
    MODELS = ("gpt", "nanogpt")
    DATA = ("plain",)

    def shown(self, quality: float) -> str:
        return f"{quality:.3f}"

    @property
    def window(self) -> int:
        return 64 if self.small else 1024

    def baselines(self) -> dict[str, float]:
        """The losses of a unigram model and of a bigram model of characters."""
        x, y = (each.flatten() for each in self._tested())
        size = len(self.data.words)
        return {"unigram": unigram(self.data.train, size, y), "bigram": bigram(self.data.train, size, x, y)}

    def largest_batch(self) -> int:
        """The number of windows that fit side by side, with one more character after the last."""
        return max(len(self.data.train) - 1, 0) // self.window

    def _shares(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
        # Otherwise it would be found out after the first epoch, when there is no window to measure.
        least, found = self.window + 1, len(self.data.test)
        require(found >= least, f"characters of the test text of {self.data.name}", f"at least {least}", found)
        return self._drawn(epoch, rank, world)

    def _drawn(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = self.generator(epoch)
        for _ in range(self.steps_of_data()):
            places = torch.randint(len(self.data.train) - self.window, (self.recipe.batch,), generator=generator)
            yield self._windows(self.data.train, places[rank::world])

    @torch.no_grad()
    def measures(self, model: nn.Module) -> dict[str, float]:
        model.eval()
        x, y = self._tested()
        pieces = zip(torch.split(x, 32), torch.split(y, 32), strict=True)
        total = sum(len(inputs) * self.loss(model(inputs), targets).item() for inputs, targets in pieces)
        return {self.measure: total / len(x)}

    def _tested(self) -> tuple[Tensor, Tensor]:
        text = self.data.test
        count = max(min(_MEASURED, len(text) - 1) // self.window, 1)
        return self._windows(text, torch.arange(count) * ((len(text) - 1) // count))

    def _windows(self, text: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        rows = text[places[:, None] + torch.arange(self.window + 1)]
        return rows[:, :-1], rows[:, 1:]


def unigram(train: Tensor, size: int, targets: Tensor) -> float:
    """The mean loss of targets in nats under the frequency of each token in the training text, plus one.

    Args:
        train: int64 tokens.
        size: size of the vocabulary.
        targets: int64 tokens.
    """
    counts = torch.bincount(train, minlength=size).double() + 1
    return -(counts / counts.sum()).log()[targets].mean().item()


def bigram(train: Tensor, size: int, before: Tensor, targets: Tensor) -> float:
    """The mean loss in nats under the frequency of a token after another, mixed with its own frequency if the pair is
    rare.

    Args:
        train: int64 tokens.
        size: size of the vocabulary.
        before: int64 tokens, the one before each target.
        targets: int64 tokens.
    """
    own = torch.bincount(train, minlength=size).double() + 1
    own /= own.sum()
    first, pairs = train[:-1], train[:-1] * size + train[1:]
    seen, counts = torch.unique(pairs, return_counts=True)
    asked = before * size + targets
    place = torch.searchsorted(seen, asked).clamp(max=len(seen) - 1)
    together = torch.where(seen[place] == asked, counts[place], 0).double()
    alone = torch.bincount(first, minlength=size).double()[before]
    return -((together + 5 * own[targets]) / (alone + 5)).log().mean().item()
