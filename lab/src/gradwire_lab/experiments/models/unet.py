"""A small U-Net for defects on surfaces, that of GRACE's benchmarks, and a smaller one of the same family."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gradwire_lab.experiments.recipe import Recipe

__all__ = ["UNet", "unet", "unet_small"]

DATA = "DAGM2007"

RECIPE = Recipe(
    batch=16,
    lr=1e-4,
    momentum=0.8,
    weight_decay=1e-5,
    warmup=1,
    drops=(0.2, 0.4, 0.6, 0.8),
    fall=0.8,
    optimizer="rmsprop",
    epochs=500,
)
RECIPE_SMALL = Recipe(
    batch=8,
    lr=7e-4,
    momentum=0.8,
    weight_decay=1e-5,
    warmup=1,
    drops=(0.2, 0.4, 0.6, 0.8),
    fall=0.8,
    optimizer="rmsprop",
    epochs=20,
)


class Pair(nn.Sequential):
    """A pair of 3x3 convolutions, each followed by a ReLU."""

    def __init__(self, inputs: int, middle: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, middle, 3, padding=1), nn.ReLU(), nn.Conv2d(middle, outputs, 3, padding=1), nn.ReLU()
        )


class Up(nn.Module):
    """An upsampling step: every pixel becomes four, then come a 2x2 convolution and a ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 2)

    def forward(self, x: Tensor) -> Tensor:
        larger = F.interpolate(x, scale_factor=2.0)
        # An even kernel leaves no choice of sides; the original pads at the right and at the bottom.
        return F.relu(self.conv(F.pad(larger, (0, 1, 0, 1))))


class UNet(nn.Module):
    """A U-Net with four levels down and four levels up; each level up also gets the output of the level down of its
    size.

    Args:
        first: channels of the first level.
        down: channels of the three levels below.
        middle: channels at the bottom.
        last: channels of the last level up.
    """

    def __init__(self, first: int, down: Sequence[int], middle: int, last: int) -> None:
        super().__init__()
        levels = (1, first, *down)
        self.down = nn.ModuleList(Pair(a, b, b) for a, b in itertools.pairwise(levels))
        self.bottom = nn.Sequential(Pair(down[2], middle, middle), Up(middle, down[2]))
        widths = [(2 * down[2], down[2], down[1]), (2 * down[1], down[1], down[0]), (2 * down[0], down[0], last)]
        self.up = nn.ModuleList(nn.Sequential(Pair(*each), Up(each[2], each[2])) for each in widths)
        self.head = nn.Sequential(Pair(last + first, first, first), nn.Conv2d(first, 1, 1))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return one logit a pixel, shape ``(batch, 1, h, w)``, from grey images of that shape; sides are multiples of
        16.
        """
        kept = []
        for level in self.down:
            x = level(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for level, skip in zip(self.up, reversed(kept[1:]), strict=True):
            x = level(torch.cat([x, skip], 1))
        logits: Tensor = self.head(torch.cat([x, kept[0]], 1))
        return logits


def unet() -> UNet:
    """The model for 1x512x512 images: 1,850,305 parameters in 46 tensors.

    Source:
        O. Ronneberger, P. Fischer, T. Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation",
        MICCAI 2015, in the form of NVIDIA's ``UNet_Industrial``.
    """
    return UNet(32, (32, 64, 128), middle=256, last=16)


def unet_small() -> UNet:
    """The model for 1x64x64 images: 116,017 parameters in 46 tensors."""
    return UNet(8, (8, 16, 32), middle=64, last=4)
