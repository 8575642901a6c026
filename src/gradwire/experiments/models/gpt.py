"""A GPT over bytes with the blocks of GPT-2's smallest size, and a small one over characters."""

from __future__ import annotations

from dataclasses import replace

from gradwire.experiments.models._attention import Decoder
from gradwire.experiments.recipe import Recipe

__all__ = ["gpt", "gpt_small"]

DATA = "bytes of text"

RECIPE = Recipe(
    batch=512,
    lr=6e-4,
    weight_decay=0.1,
    warmup=2000,
    cosine=0.1,
    clip=1.0,
    optimizer="adamw",
    betas=(0.9, 0.95),
    autocast=True,
    micro=8,
    epochs=100,
    steps=1000,
)
RECIPE_SMALL = replace(RECIPE, batch=16, lr=1e-3, warmup=20, micro=4, epochs=5, steps=100)


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
