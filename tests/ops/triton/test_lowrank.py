import pytest
import torch

from gradwire.compressors.lowrank.ops import lowrank_keep, lowrank_near_one, lowrank_orthonormal
from tests.cases import pairwise
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import check

SIZES = (0, 1, 7, 33, 2048, 4097, 9001)
KINDS = ("normal", "zeros", "dependent", "tiny", "large", "not finite")


def made(kind, rank, size):
    """Rows of a factor; "dependent" ones are multiples of the first, and some of their sums."""
    rows = gradient(rank * size, rank).view(rank, size)
    if kind == "zeros":
        rows[-1:] = 0.0
    elif kind == "dependent":
        rows[1:] = rows[:1] * torch.linspace(-3, 2, rank - 1)[:, None]
    elif kind == "tiny":
        rows *= 1e-38
    elif kind == "large":
        rows *= 1e37
    elif kind == "not finite" and size:
        rows[0, size // 2], rows[-1, -1] = torch.inf, torch.nan
    return rows.view(-1)


@pairwise
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_orthonormal(on, size, rank, kind):
    check(Case(lowrank_orthonormal, {}, {"rows": made(kind, rank, size)}, {"rank": rank}), on, size % 3)


@pairwise
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_near_one(on, size, rank, kind):
    written = {"out": ((rank * size,), torch.float32)}
    check(Case(lowrank_near_one, {"x": made(kind, rank, size)}, written, {"rank": rank}), on, size % 3)


@pairwise
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_keep(on, size, rank, kind):
    written = {"warm": gradient(rank * size, 9)}
    check(Case(lowrank_keep, {"x": made(kind, rank, size)}, written, {"rank": rank}), on, size % 3)
