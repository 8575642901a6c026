"""The tensors of which valid arguments consist."""

import torch
from torch import Tensor

N, RANKS = 32, 2


def floats() -> Tensor:
    return torch.linspace(-1, 1, N)


def status() -> Tensor:
    return torch.zeros(1, dtype=torch.int32)


def codes(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8)
