"""Products of a matrix X with thin factors, each sum in one order.

X of m rows and L columns is flat, and so are its factors, left (r, m) and right (r, L). Where the sum is over columns,
1024 of them at a time are added in 16 lanes, and then the lanes as a tree; where it is over rows, 256 of them one after
the other. What comes of these parts is added from the first part to the last.
"""

from functools import reduce

import torch
from torch import Tensor

from gradwire.errors import ConfigError, is_int, require
from gradwire.ops._checks import check_vector

__all__ = ["check_factors", "sizes_of", "write_left", "write_right"]

COLUMNS, ROWS, LANES = 1024, 256, 16


def check_factors(op: str, x: Tensor, name: str, left: Tensor, right: Tensor, rank: int) -> None:
    """Raise unless these are the matrix, called ``name``, and its factors."""
    require(is_int(rank, 1), f"{op}.rank", "an integer >= 1", rank)
    check_vector(f"{op}.{name}", x, torch.float32, x)
    check_vector(f"{op}.left", left, torch.float32, x)
    check_vector(f"{op}.right", right, torch.float32, x)
    m, length = sizes_of(left, right, rank)
    if (left.numel(), right.numel(), x.numel()) != (rank * m, rank * length, m * length):
        raise ConfigError(
            f"{op}.{name} must be m L elements, left {rank} m and right {rank} L;"
            f" got {x.numel()}, {left.numel()} and {right.numel()}"
        )


def sizes_of(left: Tensor, right: Tensor, rank: int) -> tuple[int, int]:
    """Rows and columns of the matrix."""
    return left.numel() // rank, right.numel() // rank


def write_left(x: Tensor, right: Tensor, left: Tensor, rank: int) -> None:
    """Fill ``left`` with right X^T."""
    m, length = sizes_of(left, right, rank)
    if left.numel():
        left.copy_(_left_of(x.view(m, length), right.view(rank, length)).view(-1))


def write_right(x: Tensor, left: Tensor, right: Tensor, rank: int) -> None:
    """Fill ``right`` with left X."""
    m, length = sizes_of(left, right, rank)
    if right.numel():
        right.copy_(_right_of(x.view(m, length), left.view(rank, m)).view(-1))


def _left_of(x: Tensor, right: Tensor) -> Tensor:
    pieces = zip(torch.split(x, COLUMNS, 1), torch.split(right, COLUMNS, 1), strict=True)
    return reduce(torch.add, [_lane_sums(*piece) for piece in pieces])


def _right_of(x: Tensor, left: Tensor) -> Tensor:
    return reduce(
        torch.add, [_row_sums(*piece) for piece in zip(torch.split(x, ROWS), torch.split(left, ROWS, 1), strict=True)]
    )


def _lane_sums(x: Tensor, right: Tensor) -> Tensor:
    missing = -x.shape[1] % LANES
    values, factors = (torch.nn.functional.pad(t, (0, missing)).view(len(t), -1, LANES) for t in (x, right))
    sums = torch.zeros(len(right), len(x), LANES, device=x.device)
    for j in range(values.shape[1]):
        sums = sums + values[:, j] * factors[:, j].unsqueeze(1)
    while sums.shape[-1] > 1:
        half = sums.shape[-1] // 2
        sums = sums[..., :half] + sums[..., half:]
    return sums.squeeze(-1)


def _row_sums(x: Tensor, left: Tensor) -> Tensor:
    sums = torch.zeros(len(left), x.shape[1], device=x.device)
    for row, factors in zip(x, left.T, strict=True):
        sums = sums + factors.unsqueeze(1) * row
    return sums
