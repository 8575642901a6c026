"""A language model of two LSTM layers, that of GRACE's benchmarks, and a small one of the same family."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradwire_lab.experiments.recipe import Recipe

__all__ = ["LSTMLanguageModel", "lstm", "lstm_small"]

DATA = "Penn Treebank"

# The original's loss is the sum over a window: here it is the mean, and rate and clipping make up for it.
RECIPE = Recipe(
    batch=20,
    lr=35.0,
    momentum=0.0,
    weight_decay=0.0,
    warmup=1,
    drops=tuple(epoch / 25 for epoch in range(6, 25)),
    fall=0.8,
    clip=5 / 35,
    epochs=25,
)
RECIPE_SMALL = Recipe(
    batch=20, lr=20.0, momentum=0.0, weight_decay=0.0, warmup=1, drops=(0.5, 0.75), fall=0.6, clip=5 / 20, epochs=4
)

State = list[tuple[Tensor, Tensor]]


class LSTMLayer(nn.Module):
    """One LSTM layer whose parameters are one matrix and one bias, as TensorFlow has them.

    torch's own kernel computes, on two views of the matrix, and a second bias that is zero. A module of torch's around
    it would have to be made in each step, or have parameters of its own.

    Args:
        inputs: width of what comes in.
        hidden: size of the state.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(4 * hidden, inputs + hidden))
        self.bias = nn.Parameter(torch.zeros(4 * hidden))
        self.inputs, self.hidden = inputs, hidden

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        split = self.kernel[:, : self.inputs], self.kernel[:, self.inputs :], self.bias, torch.zeros_like(self.bias)
        out, *after = torch.lstm(
            x,
            state,
            split,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=True,
        )
        return out, (after[0], after[1])


class LSTMLanguageModel(nn.Module):
    """Embedding, LSTM layers with dropout between them, a projection to the vocabulary that is not tied.

    The state is carried from call to call, so that consecutive windows of a text are read as one; ``reset`` forgets it.

    Args:
        vocabulary: words.
        hidden: width of everything between.
        layers: number of LSTM layers.
        dropout: probability of dropout on the embedding and behind each layer.
        spread: parameters are drawn from [-spread, spread].
    """

    def __init__(self, vocabulary: int, hidden: int, layers: int, dropout: float, spread: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(LSTMLayer(hidden, hidden) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, vocabulary)
        self.hidden = hidden
        self._state: State = []
        for name, param in self.named_parameters():
            if not (name.startswith("layers") and name.endswith("bias")):
                nn.init.uniform_(param, -spread, spread)

    def reset(self) -> None:
        """Begin a new text."""
        self._state = []

    def get_extra_state(self) -> State:
        """Return the hidden state that is carried from batch to batch, as a part of the checkpoint."""
        return self._state

    def set_extra_state(self, state: State) -> None:
        self._state = [(short, long) for short, long in state]

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of the next token, shape ``(batch, time, vocabulary)``, from int64 tokens of shape ``(batch,
        time)``.
        """
        h = self.dropout(self.embedding(tokens))
        before = self._state or [self._zeros(len(tokens), h) for _ in self.layers]
        after: State = []
        for layer, state in zip(self.layers, before, strict=True):
            h, (short, long) = layer(h, state)
            h = self.dropout(h)
            after.append((short.detach(), long.detach()))
        self._state = after
        logits: Tensor = self.head(h)
        return logits

    def _zeros(self, batch: int, like: Tensor) -> tuple[Tensor, Tensor]:
        return like.new_zeros(1, batch, self.hidden), like.new_zeros(1, batch, self.hidden)


def lstm(vocabulary: int = 10_000) -> LSTMLanguageModel:
    """The model for Penn Treebank: 19,775,200 parameters in 7 tensors.

    Source:
        W. Zaremba, I. Sutskever, O. Vinyals, "Recurrent Neural Network Regularization", arXiv 2014, medium size.
    """
    return LSTMLanguageModel(vocabulary, 650, layers=2, dropout=0.5, spread=0.05)


def lstm_small(vocabulary: int = 1000) -> LSTMLanguageModel:
    """The model for a vocabulary of 1,000: 341,224 parameters in 7 tensors."""
    return LSTMLanguageModel(vocabulary, 96, layers=2, dropout=0.1, spread=0.1)
