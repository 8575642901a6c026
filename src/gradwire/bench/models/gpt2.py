"""A transformer language model of GPT-2's smallest size, and a small one of the same family."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gradwire.bench.models._attention import Block, initialise
from gradwire.bench.recipe import Recipe

__all__ = ["GPT2", "gpt2", "gpt2_small"]

DATA = "text"

RECIPE = Recipe(
    batch=512, lr=6e-4, weight_decay=0.1, warmup=2000, linear=True, clip=1.0, optimizer="adamw", betas=(0.9, 0.95)
)
RECIPE_SMALL = Recipe(
    batch=20, lr=3e-3, weight_decay=0.1, warmup=50, linear=True, clip=1.0, optimizer="adamw", betas=(0.9, 0.95),
    epochs=4,
)  # fmt: skip


class GPT2(nn.Module):
    """Words and positions, blocks of causal attention, and the words' own table as the last layer.

    Args:
        vocabulary: words.
        context: positions.
        width: of the stream.
        depth: blocks.
        heads: of attention in each block.
    """

    def __init__(self, vocabulary: int, context: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        initialise(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token, shape ``(batch, time, vocabulary)``, of int64 tokens of shape ``(batch, time)``."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        h = self.norm(self.blocks(self.words(tokens) + self.positions(places)))
        return F.linear(h, self.words.weight)


def gpt2(vocabulary: int = 50_257) -> GPT2:
    """124,439,808 parameters in 148 tensors.

    Source:
        A. Radford, J. Wu, R. Child, D. Luan, D. Amodei, I. Sutskever, "Language Models are Unsupervised Multitask
        Learners", OpenAI 2019.
    """
    return GPT2(vocabulary, 1024, width=768, depth=12, heads=12)


def gpt2_small(vocabulary: int = 1000) -> GPT2:
    """For a vocabulary of 1,000 and windows of at most 64 tokens: two blocks."""
    return GPT2(vocabulary, 64, width=64, depth=2, heads=4)
