"""Hypothesis strategies for gradients."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from gradwire.testing.inputs import SPECIAL, gaussian

__all__ = ["gradients", "matrices"]


def gradients(min_size: int = 0, max_size: int = 300) -> st.SearchStrategy[Tensor]:
    """Draw finite float32 vectors: special ones, normal ones at any scale, and lists of elements.

    Args:
        min_size: fewest elements.
        max_size: most elements.
    """
    sizes = st.integers(min_size, max_size)
    special = st.builds(lambda make, n: make(n), st.sampled_from(list(SPECIAL.values())), sizes)
    elements = st.floats(-(2.0**60), 2.0**60, width=32)
    drawn = st.lists(elements, min_size=min_size, max_size=min(max_size, 40)).map(torch.tensor).map(Tensor.float)
    return special | _normal(sizes) | drawn


def matrices(max_rows: int = 12, max_columns: int = 12) -> st.SearchStrategy[Tensor]:
    """Draw finite float32 matrices, full and deficient in rank; a dimension may be 1 but not 0."""
    shapes = st.tuples(st.integers(1, max_rows), st.integers(1, max_columns))
    full = shapes.flatmap(lambda shape: _normal(st.just(shape[0] * shape[1])).map(lambda x: x.view(shape)))
    thin = shapes.flatmap(lambda shape: st.builds(torch.outer, *(_normal(st.just(n)) for n in shape)))
    return full | thin


def _normal(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[Tensor]:
    scales, seeds = st.integers(-60, 60), st.integers(0, 2**32)
    return st.builds(lambda n, seed, scale: gaussian(n, seed) * 2.0**scale, sizes, seeds, scales)
