"""The GPT of nanoGPT's example on Shakespeare over bytes, and the same one over characters."""

from __future__ import annotations

from gradwire_lab.experiments.models._attention import Decoder
from gradwire_lab.experiments.models._gpt_recipe import RECIPE, RECIPE_SMALL

__all__ = ["RECIPE", "RECIPE_SMALL", "nanogpt", "nanogpt_small"]

DATA = "bytes of text"


def nanogpt(vocabulary: int = 256) -> Decoder:
    """11,139,072 parameters in 76 tensors.

    Source:
        A. Karpathy, nanoGPT, https://github.com/karpathy/nanoGPT, 2022: ``config/train_shakespeare_char.py``.
    """
    return Decoder(vocabulary, 1024, width=384, depth=6, heads=6)


def nanogpt_small(vocabulary: int = 97, width: int = 384, depth: int = 6, heads: int = 6) -> Decoder:
    """The model for windows of at most 64 characters: 10,709,376 parameters in 76 tensors."""
    return Decoder(vocabulary, 64, width, depth, heads)
