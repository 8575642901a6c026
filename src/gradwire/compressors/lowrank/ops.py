"""Products of a matrix X with thin factors, and what is done to these factors, each sum in one order.

X of m rows and L columns is flat, and so are its factors, left (r, m) and right (r, L). Where the sum is over columns,
1024 of them at a time are added in 16 lanes, and then the lanes as a tree; where it is over rows, 256 of them one after
the other. What comes of these parts is added from the first part to the last. The products of two rows of a factor are
added in 4096 lanes, and then the lanes as a tree.
"""

from collections.abc import Callable
from functools import reduce
from typing import Annotated

import torch
from torch import Tensor

from gradwire.errors import ConfigError, Verbatim, require
from gradwire.kernels.arguments import Flat, Floats, Status, Where, Written
from gradwire.kernels.base import declared
from gradwire.kernels.feedback import compensate
from gradwire.kernels.float32 import float32
from gradwire.kernels.sums import tree_of
from gradwire.kernels.units import exponent_of, power_of_two

__all__ = [
    "lowrank_add_decoded",
    "lowrank_keep",
    "lowrank_left",
    "lowrank_left_feedback",
    "lowrank_near_one",
    "lowrank_orthonormal",
    "lowrank_right",
    "lowrank_right_feedback",
]

COLUMNS, ROWS, LANES, DOT_LANES = 1024, 256, 16, 4096

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
    return tree_of(sums)


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


def _rows_of(name: str) -> Callable[[str, int, int], None]:
    def check(op: str, n: int, rank: int) -> None:
        require(n % rank == 0, f"{op}.{name}", f"{rank} rows of one length", Verbatim(f"{n} elements"))

    return check


@declared(check=_rows_of("x"), native=False, merges=True)
def lowrank_near_one(x: Floats, out: Written, rank: Rank) -> None:
    """Scale each row of a factor by a power of two, so that its largest element is near 1: only directions matter.

    Args:
        x: float32, ``rank`` rows of one length.
        out: float32, as many elements.
        rank: number of rows, >= 1.

    >>> out = torch.empty(2)
    >>> lowrank_near_one(torch.tensor([6.0, -3.0]), out, rank=1)
    >>> out.tolist()
    [1.5, -0.75]
    """
    if x.numel():
        rows = x.view(rank, -1)
        out.copy_((rows * power_of_two(-exponent_of(_peaks(rows))).unsqueeze(1)).view(-1))


@declared(check=_rows_of("x"), native=False, merges=True)
def lowrank_keep(x: Floats, warm: Written, rank: Rank) -> None:
    """Copy the rows of a factor as a warm start, except rows that are zero or not finite, which would never recover.

    Args:
        x: float32, ``rank`` rows of one length.
        warm: float32, as many elements.
        rank: number of rows, >= 1.

    >>> warm = torch.ones(4)
    >>> lowrank_keep(torch.tensor([0.0, 0.0, 2.0, 0.0]), warm, rank=2)
    >>> warm.tolist()
    [1.0, 1.0, 2.0, 0.0]
    """
    if x.numel():
        rows, kept = x.view(rank, -1), warm.view(rank, -1)
        peaks = _peaks(rows).unsqueeze(1)
        warm.copy_(torch.where((peaks > 0) & peaks.isfinite(), rows, kept).view(-1))


@declared(check=_rows_of("rows"), native=False, merges=True)
def lowrank_orthonormal(rows: Written, rank: Rank) -> None:
    """Make the rows of a factor orthonormal; a row that depends on earlier ones becomes zero.

    Gram-Schmidt, each row cleaned twice: where the second time takes half of what the first had left, that was
    rounding noise (W. Kahan's "twice is enough"). The comparison is false for NaN, so a broken gradient stays visible.

    Args:
        rows: float32, ``rank`` rows of one length.
        rank: number of rows, >= 1; for few rows, because a GPU works on all rows of a factor in one program.

    >>> rows = torch.tensor([0.0, 3.0, 4.0, 8.0])
    >>> lowrank_orthonormal(rows, rank=2)
    >>> rows.tolist()
    [0.0, 1.0, 1.0, 0.0]
    """
    if rows.numel() == 0:
        return
    done: list[Tensor] = []
    for row in rows.view(rank, -1):
        row.div_(_peaks(row.unsqueeze(0)).clamp_(min=torch.finfo(torch.float32).tiny))
        lengths = []
        for _ in range(2):
            for other in done:
                row.sub_(other * _dot(row, other))
            # torch's root of a float32 may be one bit off; through float64 it is the nearest.
            lengths.append(_dot(row, row).double().sqrt_().float())
        once, twice = lengths
        row.div_(twice).masked_fill_(twice <= 0.5 * once, 0.0)
        done.append(row)


def _peaks(rows: Tensor) -> Tensor:
    """The largest magnitude of each row; of integers, of which that of a NaN is the largest."""
    return (rows.view(torch.int32) & 0x7FFFFFFF).amax(1).view(torch.float32)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """The sum of the products of two rows: (1,)."""
    products = torch.nn.functional.pad(x * y, (0, -x.numel() % DOT_LANES)).view(-1, DOT_LANES)
    return tree_of(reduce(torch.add, products, products.new_zeros(DOT_LANES)).unsqueeze(0))
