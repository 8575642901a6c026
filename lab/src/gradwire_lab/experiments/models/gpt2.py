"""A transformer language model of GPT-2's smallest size, and a small one of the same family."""

from __future__ import annotations

from gradwire_lab.experiments.models._attention import Decoder
from gradwire_lab.experiments.recipe import Recipe

__all__ = ["gpt2", "gpt2_small"]

DATA = "text"

RECIPE = Recipe(
    batch=512, lr=6e-4, weight_decay=0.1, warmup=2000, linear=True, clip=1.0, optimizer="adamw", betas=(0.9, 0.95)
)
RECIPE_SMALL = Recipe(
    batch=20,
    lr=3e-3,
    weight_decay=0.1,
    warmup=50,
    linear=True,
    clip=1.0,
    optimizer="adamw",
    betas=(0.9, 0.95),
    epochs=4,
)


def gpt2(vocabulary: int = 50_257) -> Decoder:
    """The model for a vocabulary of 50,257 tokens: 124,439,808 parameters in 148 tensors.

    Source:
        A. Radford, J. Wu, R. Child, D. Luan, D. Amodei, I. Sutskever, "Language Models are Unsupervised Multitask
        Learners", OpenAI 2019.
    """
    return Decoder(vocabulary, 1024, width=768, depth=12, heads=12)


def gpt2_small(vocabulary: int = 1000) -> Decoder:
    """The model for a vocabulary of 1,000 and windows of at most 64 tokens: two blocks."""
    return Decoder(vocabulary, 64, width=64, depth=2, heads=4)
