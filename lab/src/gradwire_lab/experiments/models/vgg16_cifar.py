"""VGG16 for CIFAR-10, the network of GRACE's benchmarks, and a small one of the same family."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from gradwire_lab.experiments.models._vgg import convolutions, he_normal
from gradwire_lab.experiments.recipe import Recipe

__all__ = ["CifarVGG", "vgg16_cifar", "vgg16_cifar_small"]

DATA = "CIFAR-10"

RECIPE = Recipe(batch=256, drops=(163 / 328, 245 / 328), epochs=328)
RECIPE_SMALL = Recipe(lr=0.02)


class CifarVGG(nn.Module):
    """Convolutions down to one pixel, and two linear layers without dropout.

    The last pool looks at one pixel of each 2x2, the upper left: a slip of the original that is part of its results.

    Args:
        channels: channels of the input images.
        groups: convolutions in each group.
        widths: channels of each group.
        hidden: width of the first linear layer.
        logits: outputs of the second.
    """

    def __init__(self, channels: int, groups: Sequence[int], widths: Sequence[int], hidden: int, logits: int) -> None:
        super().__init__()
        pools = [nn.MaxPool2d(2) for _ in groups[:-1]] + [nn.MaxPool2d(1, stride=2)]
        self.conv = convolutions(channels, groups, widths, pools)
        self.hidden = nn.Linear(widths[-1], hidden)
        self.head = nn.Linear(hidden, logits)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape ``(batch, logits)``, of images of shape ``(batch, channels, height, width)``."""
        logits: Tensor = self.head(self.hidden(self.conv(x).flatten(1)).relu())
        return logits


def vgg16_cifar() -> CifarVGG:
    """The model for 3x32x32 images: 14,982,987 parameters in 30 tensors.

    Logit 10 belongs to no class, as in the original.

    Source:
        K. Simonyan, A. Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015, in
        the form of H. Xu et al., "GRACE: A Compressed Communication Framework for Distributed Machine Learning",
        ICDCS 2021.
    """
    return CifarVGG(3, (2, 2, 3, 3, 3), (64, 128, 256, 512, 512), hidden=512, logits=11)


def vgg16_cifar_small() -> CifarVGG:
    """The model for 1x8x8 images and 10 classes: 113,530 parameters in 18 tensors."""
    return CifarVGG(1, (2, 2, 3), (16, 32, 64), hidden=64, logits=10)
