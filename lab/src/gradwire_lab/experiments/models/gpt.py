"""A GPT over bytes with the blocks of GPT-2's smallest size, and a small one over characters."""

from __future__ import annotations

from gradwire_lab.experiments.models._attention import Decoder
from gradwire_lab.experiments.models._gpt_recipe import RECIPE, RECIPE_SMALL

__all__ = ["RECIPE", "RECIPE_SMALL", "gpt", "gpt_small"]

DATA = "bytes of text"


def gpt(vocabulary: int = 256) -> Decoder:
    """The model for bytes: 86,039,040 parameters in 148 tensors.

    Source:
        A. Radford, J. Wu, R. Child, D. Luan, D. Amodei, I. Sutskever, "Language Models are Unsupervised Multitask
        Learners", OpenAI 2019.
    """
    return Decoder(vocabulary, 1024, width=768, depth=12, heads=12)


def gpt_small(vocabulary: int = 97, width: int = 256, depth: int = 6, heads: int = 8) -> Decoder:
    """The model for windows of at most 64 characters: 4,780,288 parameters in 76 tensors."""
    return Decoder(vocabulary, 64, width, depth, heads)
