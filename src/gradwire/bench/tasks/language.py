"""Predict the next word: by default of the standard library's source text, with a small LSTM."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gradwire.bench.data.base import Text
from gradwire.bench.data.stdlib import load_stdlib
from gradwire.bench.tasks.base import Task
from gradwire.errors import require

__all__ = ["LanguageModelling"]


class LanguageModelling(Task):
    """Perplexity, exp of the mean loss of a token, over the test text. A folder may hold Penn Treebank.

    A text is cut into as many columns as a batch has rows, which are read side by side, a window in each step.

    Example:
        >>> task = LanguageModelling()
        >>> task.data.name, task.model_name, task.steps(epochs=4)
        ('stdlib', 'lstm_small', 996)
    """

    name = "language"
    measure = "test perplexity"
    higher_is_better = False
    MODELS = ("lstm", "gpt2")
    DATA = ("ptb",)
    data: Text

    def embedded(self) -> Text:
        return load_stdlib()

    def sizes(self) -> dict[str, int]:
        return {"vocabulary": len(self.data.words)}

    def shown(self, quality: float) -> str:
        return f"{quality:.1f}"

    @property
    def window(self) -> int:
        """Tokens of a step in each row."""
        return 20 if self.small else 35

    def baselines(self) -> dict[str, float]:
        """The perplexities of a model that knows how often each word comes, and of one that knows the word before."""
        return {"unigram": _unigram(self.data), "bigram": _bigram(self.data)}

    def steps(self, epochs: int) -> int:
        return epochs * ((len(self.data.train) // self.recipe.batch - 1) // self.window)

    def largest_batch(self) -> int:
        """Each row has a window at least, and the word after it."""
        return len(self.data.train) // (self.window + 1)

    def _shares(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
        # Otherwise it would be found out after the first epoch, when there is no window to measure.
        least, words = self._test_rows * (self.window + 1), len(self.data.test)
        require(words >= least, f"words of the test text of {self.data.name}", f"at least {least}", words)
        return self._windows(self.data.train, self.recipe.batch, slice(rank, None, world))

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), target.flatten())

    @torch.no_grad()
    def measures(self, model: nn.Module) -> dict[str, float]:
        model.eval()
        self.begin_epoch(model)
        windows = self._windows(self.data.test, self._test_rows, slice(None))
        losses = [self.loss(model(x), y).item() for x, y in windows]
        self.begin_epoch(model)
        return {self.measure: _perplexity(sum(losses) / len(losses))}

    @property
    def _test_rows(self) -> int:
        return min(self.recipe.batch, 10)

    def _windows(self, text: Tensor, rows: int, mine: slice) -> Iterator[tuple[Tensor, Tensor]]:
        columns = text[: len(text) // rows * rows].view(rows, -1)[mine]
        for start in range(0, columns.shape[1] - self.window, self.window):
            yield columns[:, start:][:, : self.window], columns[:, start + 1 :][:, : self.window]


def _perplexity(loss: float) -> float:
    """exp, and infinity where that is more than a float holds: so far a run that diverges can come."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _unigram(data: Text) -> float:
    counts = torch.bincount(data.train, minlength=len(data.words)).double() + 1
    return math.exp(-(counts / counts.sum()).log()[data.test].mean().item())


def _bigram(data: Text) -> float:
    """The share of a word after another, mixed with the word's own share where the pair is rare."""
    size = len(data.words)
    own = torch.bincount(data.train, minlength=size).double() + 1
    own /= own.sum()
    before, pairs = data.train[:-1], data.train[:-1] * size + data.train[1:]
    seen, counts = torch.unique(pairs, return_counts=True)
    asked = data.test[:-1] * size + data.test[1:]
    place = torch.searchsorted(seen, asked).clamp(max=len(seen) - 1)
    together = torch.where(seen[place] == asked, counts[place], 0).double()
    first = torch.bincount(before, minlength=size).double()[data.test[:-1]]
    return math.exp(-((together + 5 * own[data.test[1:]]) / (first + 5)).log().mean().item())
