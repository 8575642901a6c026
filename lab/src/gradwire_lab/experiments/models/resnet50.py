"""ResNet-50 v1, the ImageNet network of GRACE's benchmarks, and a small one of the same family."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gradwire_lab.experiments.recipe import Recipe

__all__ = ["ResNetV1", "resnet50", "resnet50_small"]

DATA = "ImageNet"

FIRST_CLASS = 1
"""Logit 0 is the background."""

RECIPE = Recipe(batch=256, lr=0.128, weight_decay=4e-5, warmup=25_000, drops=(1 / 3, 2 / 3, 8 / 9), epochs=90)
RECIPE_SMALL = Recipe()


class Bottleneck(nn.Module):
    """A bottleneck: relu(shortcut(x) + bn(conv1x1(relu(bn(conv3x3(relu(bn(conv1x1(x)))))))); the first convolution has
    the stride.
    """

    def __init__(self, inputs: int, inner: int, stride: int, *, project: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, inner, 1, stride, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, 4 * inner, 1, bias=False), nn.BatchNorm2d(4 * inner)
        projection = [nn.Conv2d(inputs, 4 * inner, 1, stride, bias=False), nn.BatchNorm2d(4 * inner)]
        self.shortcut = nn.Sequential(*(projection if project else []))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.relu(self.bn2(self.conv2(h)))
        return F.relu(self.shortcut(x) + self.bn3(self.conv3(h)))


class ResNetV1(nn.Module):
    """Stem, stages of bottlenecks, global mean, linear head.

    Args:
        stem: module that is everything before the first stage.
        inputs: channels that the stem gives.
        blocks: number of blocks in each stage; every stage but the first halves the resolution.
        inner: channels inside the first stage's bottlenecks; they double from stage to stage.
        logits: outputs of the head.
    """

    def __init__(self, stem: nn.Module, inputs: int, blocks: Sequence[int], inner: int, logits: int) -> None:
        super().__init__()
        self.stem = stem
        layers = []
        for stage, count in enumerate(blocks):
            width = inner << stage
            for i in range(count):
                layers.append(Bottleneck(inputs, width, 2 if stage and i == 0 else 1, project=i == 0))
                inputs = 4 * width
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, logits)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape ``(batch, logits)``, of images of shape ``(batch, channels, height, width)``."""
        logits: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return logits


def resnet50() -> ResNetV1:
    """The model for 3x224x224 images: 25,559,081 parameters in 161 tensors.

    Logit 0 is the background, which no image shows.

    Source:
        K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016.
    """
    stem = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, ceil_mode=True),
    )
    return ResNetV1(stem, 64, (3, 4, 6, 3), inner=64, logits=1001)


def resnet50_small() -> ResNetV1:
    """The model for 1x8x8 images and 10 classes, with a bottleneck in each of three stages."""
    stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    return ResNetV1(stem, 16, (1, 1, 1), inner=8, logits=10)
