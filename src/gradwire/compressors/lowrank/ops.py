"""Products of a matrix X with thin factors, each sum in one order.

X of m rows and L columns is flat, and so are its factors, left (r, m) and right (r, L). Where the sum is over columns,
1024 of them at a time are added in 16 lanes, and then the lanes as a tree; where it is over rows, 256 of them one after
the other. What comes of these parts is added from the first part to the last.
"""

from collections.abc import Callable
from functools import reduce
from typing import Annotated

import torch
from torch import Tensor

from gradwire.errors import ConfigError
from gradwire.kernels.arguments import Flat, Floats, Status, Where, Written
from gradwire.kernels.base import declared
from gradwire.kernels.feedback import compensate
from gradwire.kernels.validation import float32

__all__ = ["lowrank_add_decoded", "lowrank_left", "lowrank_left_feedback", "lowrank_right", "lowrank_right_feedback"]

COLUMNS, ROWS, LANES = 1024, 256, 16

Rank = Annotated[int, Where("rank >= 1", "an integer >= 1")]
Left = Annotated[Tensor, Flat(torch.float32, "lefts")]
Right = Annotated[Tensor, Flat(torch.float32, "rights")]
WrittenLeft = Annotated[Tensor, Flat(torch.float32, "lefts", written=True)]
WrittenRight = Annotated[Tensor, Flat(torch.float32, "rights", written=True)]


def _sizes_of(matrix: str) -> Callable[[str, int, int, int, int], None]:
    def check(op: str, n: int, lefts: int, rights: int, rank: int) -> None:
        if lefts % rank or rights % rank or n * rank * rank != lefts * rights:
            raise ConfigError(
                f"{op}.{matrix} must be m L elements, left {rank} m and right {rank} L; got {n}, {lefts} and {rights}"
            )

    return check


def _write_left(x: Tensor, right: Tensor, left: Tensor, rank: int) -> None:
    if left.numel():
        left.copy_(_left_of(x.view(left.numel() // rank, -1), right.view(rank, -1)).view(-1))


def _write_right(x: Tensor, left: Tensor, right: Tensor, rank: int) -> None:
    if right.numel():
        right.copy_(_right_of(x.view(-1, right.numel() // rank), left.view(rank, -1)).view(-1))


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
    sums = torch.zeros(len(right), len(x), LANES, dtype=torch.float32, device=x.device)
    for j in range(values.shape[1]):
        sums = sums + values[:, j] * factors[:, j].unsqueeze(1)
    while sums.shape[-1] > 1:
        half = sums.shape[-1] // 2
        sums = sums[..., :half] + sums[..., half:]
    return sums.squeeze(-1)


def _row_sums(x: Tensor, left: Tensor) -> Tensor:
    sums = torch.zeros(len(left), x.shape[1], dtype=torch.float32, device=x.device)
    for row, factors in zip(x, left.T, strict=True):
        sums = sums + factors.unsqueeze(1) * row
    return sums


@declared(check=_sizes_of("x"))
def lowrank_left(x: Floats, right: Right, left: WrittenLeft, rank: Rank) -> None:
    """Multiply a matrix by the rows of a thin factor: left = right X^T.

    Args:
        x: float32, the m rows of L elements one after the other.
        right: float32, ``rank`` rows of L.
        left: float32, ``rank`` rows of m.
        rank: number of rows of the factors, >= 1. From about 16 on a BLAS is faster.

    Raises:
        ConfigError: a tensor or a number is not of this form.

    >>> left = torch.empty(2)
    >>> lowrank_left(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, -1.0]), left, rank=1)
    >>> left.tolist()
    [-1.0, -1.0]
    """
    _write_left(x, right, left, rank)


@declared(check=_sizes_of("residual"))
def lowrank_left_feedback(
    grad: Written, residual: Written, right: Right, left: WrittenLeft, rank: Rank, status: Status = None
) -> None:
    """Add the gradient to the residual, and multiply the sum: residual = residual + grad; left = right residual^T.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements: m rows of L.
        right: float32, ``rank`` rows of L.
        left: float32, ``rank`` rows of m.
        rank: number of rows of the factors, >= 1. From about 16 on a BLAS is faster.
        status: int32, 1 element, or None: bit 0 is set where the sum is not finite.

    Raises:
        ConfigError: a tensor or a number is not of this form.

    >>> residual, left = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.empty(2)
    >>> lowrank_left_feedback(torch.ones(4), residual, torch.tensor([1.0, 0.0]), left, rank=1)
    >>> left.tolist()
    [2.0, 4.0]
    """
    residual.copy_(compensate(grad, residual, status))
    _write_left(residual, right, left, rank)


@declared(check=_sizes_of("x"))
def lowrank_right(x: Floats, left: Left, right: WrittenRight, rank: Rank) -> None:
    """Sum the rows of a matrix, each times an element of a thin factor: right = left X.

    Args:
        x: float32, the m rows of L elements one after the other.
        left: float32, ``rank`` rows of m.
        right: float32, ``rank`` rows of L.
        rank: number of rows of the factors, >= 1. From about 16 on a BLAS is faster.

    Raises:
        ConfigError: a tensor or a number is not of this form.

    >>> right = torch.empty(2)
    >>> lowrank_right(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, -1.0]), right, rank=1)
    >>> right.tolist()
    [-2.0, -2.0]
    """
    _write_right(x, left, right, rank)


@declared(check=_sizes_of("residual"))
def lowrank_right_feedback(
    grad: Written, residual: Written, left: Left, right: WrittenRight, rank: Rank, status: Status = None
) -> None:
    """Add the gradient to the residual, and multiply the sum: residual = residual + grad; right = left residual.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements: m rows of L.
        left: float32, ``rank`` rows of m.
        right: float32, ``rank`` rows of L.
        rank: number of rows of the factors, >= 1. From about 16 on a BLAS is faster.
        status: int32, 1 element, or None: bit 0 is set where the sum is not finite.

    Raises:
        ConfigError: a tensor or a number is not of this form.

    >>> residual, right = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.empty(2)
    >>> lowrank_right_feedback(torch.ones(4), residual, torch.tensor([1.0, 0.0]), right, rank=1)
    >>> right.tolist()
    [2.0, 3.0]
    """
    residual.copy_(compensate(grad, residual, status))
    _write_right(residual, left, right, rank)


@declared(check=_sizes_of("out"))
def lowrank_add_decoded(
    left: Left, right: Right, out: Written, rank: Rank, scale: float, status: Status = None
) -> None:
    """Add an outer product for each row of the factors, in order: out = out + (scale * left[k]) right[k]^T.

    Args:
        left: float32, ``rank`` rows of m.
        right: float32, ``rank`` rows of L.
        out: float32, the m rows of L elements one after the other.
        rank: number of rows of the factors, >= 1. From about 16 on a BLAS is faster.
        scale: factor of the product.
        status: int32, 1 element, or None: bit 0 is set where the result is not finite.

    Raises:
        ConfigError: a tensor or a number is not of this form.

    >>> out = torch.zeros(4)
    >>> lowrank_add_decoded(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), out, rank=1, scale=0.5)
    >>> out.tolist()
    [1.5, 2.0, 3.0, 4.0]
    """
    m, length = left.numel() // rank, right.numel() // rank
    matrix = out.view(m, length)
    for column, row in zip(left.view(rank, m), right.view(rank, length), strict=True):
        matrix += (float32(scale) * column).unsqueeze(1) * row
    if status is not None:
        status |= ~torch.isfinite(out).all()
