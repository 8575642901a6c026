"""Prediction of the next word: by default in the standard library's source text, with a small LSTM."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gradwire.errors import require
from gradwire_lab.experiments.data.base import Text
from gradwire_lab.experiments.data.stdlib import load_stdlib
from gradwire_lab.experiments.tasks._tokens import NextToken, bigram, unigram

__all__ = ["LanguageModelling"]


class LanguageModelling(NextToken):
    """Perplexity, exp of the mean loss of a token, over the test text. A folder may hold Penn Treebank.

    A text is cut into as many columns as a batch has rows, which are read side by side, a window in each step.

    Example:
        >>> task = LanguageModelling()
        >>> task.data.name, task.model_name, task.steps(epochs=4)
        ('stdlib', 'lstm_small', 996)
    """

    name = "language"
    measure = "test perplexity"
    MODELS = ("lstm", "gpt2")
    DATA = ("ptb",)

    def embedded(self) -> Text:
        return load_stdlib()

    def shown(self, quality: float) -> str:
        return f"{quality:.1f}"

    @property
    def window(self) -> int:
        return 20 if self.small else 35

    def baselines(self) -> dict[str, float]:
        """The perplexities of a unigram model and of a bigram model of words."""
        train, test, size = self.data.train, self.data.test, len(self.data.words)
        losses = {"unigram": unigram(train, size, test), "bigram": bigram(train, size, test[:-1], test[1:])}
        return {name: math.exp(loss) for name, loss in losses.items()}

    def steps_of_data(self) -> int:
        return max(len(self.data.train) // self.recipe.batch - 1, 0) // self.window

    def largest_batch(self) -> int:
        """The number of rows of which each has at least a window, and the word after it."""
        return len(self.data.train) // (self.window + 1)

    def _shares(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
        # Otherwise it would be found out after the first epoch, when there is no window to measure.
        least, words = self._test_rows * (self.window + 1), len(self.data.test)
        require(words >= least, f"words of the test text of {self.data.name}", f"at least {least}", words)
        return self._windows(self._begun(), self.recipe.batch, slice(rank, None, world))

    def _begun(self) -> Tensor:
        """The training text, from its beginning, or with another ``order`` from another place on and around."""
        text = self.data.train
        if not self.order:
            return text
        return text.roll(int(torch.randint(len(text), (), generator=self.generator(0))))

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
    """Compute exp, with infinity beyond the range of a float, which a diverging run can reach."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
