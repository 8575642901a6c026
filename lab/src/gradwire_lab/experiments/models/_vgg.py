"""Parts common to the VGG networks: groups of 3x3 convolutions with biases, a pool after each, no batch norm."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

__all__ = ["convolutions", "he_normal"]


def convolutions(channels: int, groups: Sequence[int], widths: Sequence[int], pools: Sequence[nn.Module]) -> nn.Module:
    """The convolutions of each group, its width, and the pool behind it."""
    layers: list[nn.Module] = []
    inputs = channels
    for count, width, pool in zip(groups, widths, pools, strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
            inputs = width
        layers.append(pool)
    return nn.Sequential(*layers)


def he_normal(model: nn.Module) -> None:
    """Initialise weights after He et al.; otherwise such a deep network without batch norm does not begin to learn."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            assert module.bias is not None
            nn.init.zeros_(module.bias)
