"""A vision transformer of the base size with patches of 16x16, and a small one of the same family."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradwire_lab.experiments.models._attention import TransformerBlock, initialise
from gradwire_lab.experiments.recipe import Recipe

__all__ = ["ViT", "vit", "vit_small"]

DATA = "ImageNet"

RECIPE = Recipe(
    batch=4096, lr=3e-3, weight_decay=0.3, warmup=10_000, linear=True, clip=1.0, optimizer="adamw", epochs=300
)
RECIPE_SMALL = Recipe(lr=6e-3, weight_decay=0.05, linear=True, clip=1.0, optimizer="adamw", epochs=20)


class ViT(nn.Module):
    """A vision transformer: patch and position embeddings, blocks of attention, and a linear head on the class token.

    Args:
        channels: channels of the input images.
        side: side of the input images, in pixels.
        patch: side of a patch; it divides ``side``.
        width: width of the stream.
        depth: blocks.
        heads: number of heads of attention in each block.
        logits: outputs of the head.
    """

    def __init__(self, channels: int, side: int, patch: int, width: int, depth: int, heads: int, logits: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.empty(1, (side // patch) ** 2 + 1, width))
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, causal=False, epsilon=1e-6) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, logits)
        initialise(self)
        nn.init.normal_(self.places, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape ``(batch, logits)``, of images of shape ``(batch, channels, side, side)``."""
        patches = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.places
        logits: Tensor = self.head(self.norm(self.blocks(h))[:, 0])
        return logits


def vit() -> ViT:
    """The model for 3x224x224 images and 1,000 classes, ViT-B/16: 86,567,656 parameters in 152 tensors.

    Source:
        A. Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale", ICLR 2021.
    """
    return ViT(3, 224, 16, width=768, depth=12, heads=12, logits=1000)


def vit_small() -> ViT:
    """The model for 1x8x8 images and 10 classes: patches of 2x2, two blocks."""
    return ViT(1, 8, 2, width=32, depth=2, heads=4, logits=10)
