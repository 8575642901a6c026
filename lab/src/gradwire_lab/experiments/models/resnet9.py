"""ResNet-9, the fast CIFAR-10 network, and a small one of the same family."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gradwire_lab.experiments.recipe import Recipe

__all__ = ["ResNet9", "resnet9", "resnet9_small"]

DATA = "CIFAR-10"

RECIPE = Recipe(batch=512, lr=0.4, weight_decay=5e-4, warmup=485, linear=True, epochs=24)
RECIPE_SMALL = Recipe(lr=0.05)

_LOGIT_SCALE = 0.125


class Conv(nn.Sequential):
    """A convolution, relu(bn(conv3x3(x))), optionally followed by a 2x2 max pool."""

    def __init__(self, inputs: int, outputs: int, *, pool: bool = False) -> None:
        layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        super().__init__(*layers, *([nn.MaxPool2d(2)] if pool else []))


class ResidualBlock(nn.Module):
    """A residual block, x + conv(conv(x)), with no activation after the sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = Conv(channels, channels)
        self.second = Conv(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.second(self.first(x))
        return x + change


class ResNet9(nn.Module):
    """ResNet-9: four convolutions of growing width, two residual blocks, global max pooling, a linear head without
    bias.

    Args:
        channels: channels of the input images.
        width: width of the first convolution; it doubles three times.
        logits: outputs of the head.
    """

    def __init__(self, channels: int, width: int, logits: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            Conv(channels, width),
            Conv(width, 2 * width, pool=True),
            ResidualBlock(2 * width),
            Conv(2 * width, 4 * width, pool=True),
            Conv(4 * width, 8 * width, pool=True),
            ResidualBlock(8 * width),
        )
        self.head = nn.Linear(8 * width, logits, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape ``(batch, logits)``, of images of shape ``(batch, channels, height, width)``."""
        logits: Tensor = self.head(F.adaptive_max_pool2d(self.body(x), 1).flatten(1))
        return logits * _LOGIT_SCALE


def resnet9() -> ResNet9:
    """The model for 3x32x32 images: 6,573,120 parameters in 25 tensors.

    Source:
        D. Page, "How to Train Your ResNet", Myrtle.ai 2018 (``cifar10-fast``).
    """
    return ResNet9(3, 64, logits=10)


def resnet9_small() -> ResNet9:
    """The model for 1x8x8 images and 10 classes: 103,800 parameters in 25 tensors."""
    return ResNet9(1, 8, logits=10)
