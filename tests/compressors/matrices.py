"""Matrices that the tests of low-rank methods share."""

import torch
from torch import Tensor

from gradwire.compressors.base import Compressor
from gradwire.testing.inputs import gaussian
from gradwire.vocabulary import Key, State


def matrix(m: int, length: int, seed: int = 0) -> Tensor:
    return gaussian(m * length, seed).view(m, length)


def nearly_rank_3(m: int, length: int) -> Tensor:
    """Three directions and a little noise."""
    return matrix(m, 3, 1) @ matrix(3, length, 2) + 0.05 * matrix(m, length, 3)


def relative_error(x: Tensor, approximation: Tensor) -> float:
    """|x - approximation| / |x|."""
    return float((x - approximation).double().norm() / x.double().norm())


def decoded(code: Compressor, x: Tensor, state: State | None = None, step: int = 0) -> Tensor:
    return code.decompress(code.compress(x, state, Key(step=step)), x.shape)


def deficient(kind: str) -> Tensor:
    """Matrices of 6 x 5 with fewer than three directions."""
    return {
        "zero": torch.zeros(6, 5),
        "one row": torch.zeros(6, 5).index_fill_(0, torch.tensor([3]), 2.0),
        "rank 1": torch.outer(gaussian(6), gaussian(5, 1)),
        "equal columns": gaussian(6).unsqueeze(1).expand(6, 5).contiguous(),
        "tiny": torch.outer(gaussian(6), gaussian(5, 1)) * 1e-36,
        "huge": torch.outer(gaussian(6), gaussian(5, 1)) * 1e34,
    }[kind]


DEFICIENT = ("zero", "one row", "rank 1", "equal columns", "tiny", "huge")
