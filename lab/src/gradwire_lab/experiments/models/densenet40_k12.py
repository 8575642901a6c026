"""DenseNet-40 with growth 12, the CIFAR-10 network of GRACE's benchmarks, and a small one of the same family."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gradwire_lab.experiments.recipe import Recipe

__all__ = ["DenseNet", "densenet40_k12", "densenet40_k12_small"]

DATA = "CIFAR-10"

RECIPE = Recipe(drops=(163 / 328, 245 / 328), epochs=328)
RECIPE_SMALL = Recipe()


class Layer(nn.Module):
    """A dense layer: concat(x, conv(relu(bn(x))))."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.bn(x)))], 1)


class Transition(nn.Module):
    """A transition: 2x2 mean pooling of relu(conv1x1(relu(bn(x))))."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(F.relu(self.conv(F.relu(self.bn(x)))), 2)


class DenseNet(nn.Module):
    """Stem, dense blocks with transitions between them, global mean, linear head.

    A transition shrinks to twice the growth, because the original counted its channels wrong; with the width that was
    meant the network would have a million parameters, and would not be the one of the benchmarks.

    Args:
        channels: channels of the input images.
        layers: number of layers in each block; every block but the first halves the resolution.
        growth: channels that a layer adds.
        stem: channels of the first convolution.
        logits: outputs of the head.
    """

    def __init__(self, channels: int, layers: Sequence[int], growth: int, stem: int, logits: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, stem, 3, padding=1)
        body: list[nn.Module] = []
        width = stem
        for block, count in enumerate(layers):
            if block > 0:
                body.append(Transition(width, 2 * growth))
                width = 2 * growth
            for _ in range(count):
                body.append(Layer(width, growth))
                width += growth
        self.body = nn.Sequential(*body)
        self.bn = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, logits)
        self.apply(_initialise)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape ``(batch, logits)``, of images of shape ``(batch, channels, height, width)``."""
        logits: Tensor = self.head(F.relu(self.bn(self.body(self.stem(x)))).mean((2, 3)))
        return logits


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        std = (2 / (9 * module.out_channels)) ** 0.5
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def densenet40_k12() -> DenseNet:
    """The model for 3x32x32 images: 357,491 parameters in 158 tensors.

    Logit 10 belongs to no class, as in the original.

    Source:
        G. Huang, Z. Liu, L. van der Maaten, K. Weinberger, "Densely Connected Convolutional Networks", CVPR 2017, in
        the form of ``densenet40_k12`` of tf_cnn_benchmarks.
    """
    return DenseNet(3, (12, 12, 12), growth=12, stem=16, logits=11)


def densenet40_k12_small() -> DenseNet:
    """The model for 1x8x8 images and 10 classes: 16,178 parameters in 50 tensors."""
    return DenseNet(1, (3, 3, 3), growth=8, stem=8, logits=10)
