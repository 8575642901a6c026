"""Generated choices of fictitious users: tastes and films in six dimensions, and films that everybody likes.

score = 2.2 u . v / sqrt(6) - 0.8 ln(rank of the film) + Gumbel noise, and each user has chosen the films that scored
highest, in random order.
"""

from __future__ import annotations

import numpy as np
import torch

from gradwire_lab.experiments.data.base import Interactions

__all__ = ["generate"]

_TASTES = 6


def generate(users: int = 1000, items: int = 500, seed: int = 11) -> Interactions:
    """Generate 20 to 120 choices for each user, mostly few; the last one is held out.

    Example:
        >>> data = generate()
        >>> len(data.train), data.users, data.items
        (31518, 1000, 500)
    """
    rng = np.random.default_rng(seed)
    tastes, films = rng.standard_normal((users, _TASTES)), rng.standard_normal((items, _TASTES))
    popularity = -0.8 * np.log(rng.permutation(items) + 1)
    score = 2.2 * tastes @ films.T / np.sqrt(_TASTES) + popularity + rng.gumbel(size=(users, items))
    counts = np.minimum(20 + 10 * rng.pareto(1.6, users), 120).astype(int)
    chosen = [rng.permutation(np.argsort(-score[user])[:count]) for user, count in enumerate(counts)]
    train = np.concatenate([np.stack([np.full(len(each) - 1, user), each[:-1]], 1) for user, each in enumerate(chosen)])
    held_out = torch.tensor([int(each[-1]) for each in chosen])
    return Interactions("generated choices", users, items, torch.from_numpy(train), held_out)
