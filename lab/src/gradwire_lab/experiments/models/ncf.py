"""Neural collaborative filtering (NeuMF), the recommender of GRACE's benchmarks, and a small one of the same family."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradwire_lab.experiments.recipe import Recipe

__all__ = ["NeuMF", "ncf", "ncf_small"]

DATA = "MovieLens-20M"

RECIPE = Recipe(
    batch=1 << 20, lr=0.0045, weight_decay=0.0, warmup=1, drops=(), optimizer="adam", betas=(0.25, 0.5), epochs=30
)
RECIPE_SMALL = Recipe(batch=2048, lr=0.01, weight_decay=0.0, warmup=1, drops=(), optimizer="adam", betas=(0.25, 0.5))


class NeuMF(nn.Module):
    """NeuMF: one logit from user u and item i, out(concat(u_1 * i_1, mlp(concat(u_2, i_2)))).

    Args:
        users: rows of their table.
        items: rows of theirs.
        factors: width of the first part of both tables, which are multiplied.
        hidden: widths of the layers above the second parts, the two of them together first.
        dropout: probability of dropout after each of these layers.
    """

    def __init__(self, users: int, items: int, factors: int, hidden: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.factors = factors
        self.users = nn.Embedding(users, factors + hidden[0] // 2)
        self.items = nn.Embedding(items, factors + hidden[0] // 2)
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(hidden))
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(factors + hidden[-1], 1)
        self._initialise()

    def _initialise(self) -> None:
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.01)
        for layer in self.hidden:
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        limit = (3 / self.out.in_features) ** 0.5
        nn.init.uniform_(self.out.weight, -limit, limit)
        nn.init.zeros_(self.out.bias)

    def forward(self, pairs: Tensor) -> Tensor:
        """Logits, shape ``(batch,)``, of int64 pairs of a user and an item, shape ``(batch, 2)``."""
        user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        product = user[:, : self.factors] * item[:, : self.factors]
        h = torch.cat([user[:, self.factors :], item[:, self.factors :]], 1)
        for layer in self.hidden:
            h = self.dropout(layer(h).relu())
        logits: Tensor = self.out(torch.cat([product, h], 1)).squeeze(1)
        return logits


def ncf(users: int = 138_493, items: int = 26_744) -> NeuMF:
    """The model for MovieLens-20M: 31,832,577 parameters in 10 tensors.

    Both parts of a table are one tensor, as in the original.

    Source:
        X. He, L. Liao, H. Zhang, L. Nie, X. Hu, T. Chua, "Neural Collaborative Filtering", WWW 2017.
    """
    return NeuMF(users, items, factors=64, hidden=(256, 256, 128, 64), dropout=0.5)


def ncf_small(users: int = 1000, items: int = 500) -> NeuMF:
    """The model for 1,000 users and 500 items: 37,737 parameters in 10 tensors."""
    return NeuMF(users, items, factors=8, hidden=(32, 32, 16, 8), dropout=0.0)
