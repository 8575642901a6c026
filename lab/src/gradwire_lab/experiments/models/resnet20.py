"""ResNet-20 v2 (pre-activation), the CIFAR-10 network of GRACE's benchmarks, and a small one of the same family."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name that every torch user knows)

from gradwire_lab.experiments.recipe import Recipe

__all__ = ["ResNetV2", "resnet20", "resnet20_small"]

DATA = "CIFAR-10"

RECIPE = Recipe(batch=256, drops=(163 / 328, 245 / 328), epochs=328)
RECIPE_SMALL = Recipe()


class BatchNormBeta(nn.BatchNorm2d):
    """A batch norm with a trainable offset and a fixed scale of 1."""

    def __init__(self, channels: int) -> None:
        # The original's decay of 0.999 needs 328 epochs to fill the statistics; short runs need torch's own 0.9.
        super().__init__(channels, eps=1e-3)
        del self.weight
        self.register_buffer("weight", torch.ones(channels))


class Conv3x3(nn.Conv2d):
    """A 3x3 convolution without bias, padded like TensorFlow's SAME: an odd extra pixel goes to the bottom right."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, 3, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        step = self.stride[0]
        height, width = (max((-(-size // step) - 1) * step + 3 - size, 0) for size in x.shape[2:])
        padded = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        return super().forward(padded)


class BasicBlock(nn.Module):
    """A basic block: x + conv(relu(bn(conv(relu(bn(x)))))); if the width grows, x is subsampled and padded with zero
    channels.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, (outputs - inputs) // 2
        self.bn1 = BatchNormBeta(inputs)
        self.conv1 = Conv3x3(inputs, outputs, stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = Conv3x3(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.conv1(F.relu(self.bn1(x)))
        h = self.conv2(F.relu(self.bn2(h)))
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.extra, self.extra))
        return shortcut + h


class ResNetV2(nn.Module):
    """Stem, stages of pre-activation blocks, global mean, linear head.

    Args:
        channels: channels of the input images.
        blocks: number of blocks in each stage; every stage but the first halves the resolution.
        widths: channels of each stage; each divides into the next by an even difference.
        logits: outputs of the head.
    """

    def __init__(self, channels: int, blocks: Sequence[int], widths: Sequence[int], logits: int) -> None:
        super().__init__()
        self.stem = Conv3x3(channels, widths[0])
        self.bn = nn.BatchNorm2d(widths[0])
        layers, inputs = [], widths[0]
        for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            for i in range(count):
                layers.append(BasicBlock(inputs, width, stride=2 if stage > 0 and i == 0 else 1))
                inputs = width
        self.blocks = nn.Sequential(*layers)
        self.last = BatchNormBeta(inputs)
        self.head = nn.Linear(inputs, logits)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape ``(batch, logits)``, of images of shape ``(batch, channels, height, width)``."""
        h = self.blocks(F.relu(self.bn(self.stem(x))))
        logits: Tensor = self.head(F.relu(self.last(h)).mean((2, 3)))
        return logits


def resnet20() -> ResNetV2:
    """The model for 3x32x32 images: 269,467 parameters in 51 tensors; logit 10 belongs to no class, as in the original.

    Source:
        K. He, X. Zhang, S. Ren, J. Sun, "Identity Mappings in Deep Residual Networks", ECCV 2016, in the form of
        ``resnet20_v2`` of tf_cnn_benchmarks.
    """
    return ResNetV2(3, (3, 3, 3), (16, 32, 64), logits=11)


def resnet20_small() -> ResNetV2:
    """The model for 1x8x8 images and 10 classes: 19,026 parameters in 21 tensors."""
    return ResNetV2(1, (1, 1, 1), (8, 16, 32), logits=10)
