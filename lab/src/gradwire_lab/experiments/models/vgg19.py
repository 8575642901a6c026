"""VGG19, the ImageNet network with the largest tensor of GRACE's benchmarks, and a small one of the same family."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from gradwire_lab.experiments.models._vgg import convolutions, he_normal
from gradwire_lab.experiments.recipe import Recipe

__all__ = ["VGG", "vgg19", "vgg19_small"]

DATA = "ImageNet"

FIRST_CLASS = 1
"""Logit 0 is the background."""

RECIPE = Recipe(batch=256, lr=0.005, weight_decay=4e-5, warmup=1, drops=(1 / 3, 2 / 3, 8 / 9), epochs=90)
RECIPE_SMALL = Recipe(lr=0.02)


class VGG(nn.Module):
    """VGG: groups of convolutions, each followed by 2x2 max pooling, and three linear layers with dropout.

    Args:
        channels: channels of the input images.
        side: side of the input images, in pixels; halved by each group.
        groups: convolutions in each group.
        widths: channels of each group.
        hidden: width of the first two linear layers.
        logits: outputs of the third.
        dropout: probability of dropout between the linear layers.
    """

    def __init__(
        self,
        channels: int,
        side: int,
        groups: Sequence[int],
        widths: Sequence[int],
        hidden: int,
        logits: int,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.conv = convolutions(channels, groups, widths, [nn.MaxPool2d(2) for _ in groups])
        pixels = (side >> len(groups)) ** 2
        self.head = nn.Sequential(
            nn.Linear(widths[-1] * pixels, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, logits),
        )
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape ``(batch, logits)``, of images of shape ``(batch, channels, side, side)``."""
        logits: Tensor = self.head(self.conv(x).flatten(1))
        return logits


def vgg19() -> VGG:
    """The model for 3x224x224 images: 143,671,337 parameters in 38 tensors.

    Logit 0 is the background, which no image shows.

    Source:
        K. Simonyan, A. Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015.
    """
    return VGG(3, 224, (2, 2, 4, 4, 4), (64, 128, 256, 512, 512), hidden=4096, logits=1001)


def vgg19_small() -> VGG:
    """The model for 1x8x8 images and 10 classes: 12,538 parameters.

    Most of them are in the linear layers, as at full size.
    """
    return VGG(1, 8, (1, 2), (8, 16), hidden=64, logits=10, dropout=0.1)
